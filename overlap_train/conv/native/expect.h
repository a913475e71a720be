// What the small test programs check: each failure is printed, and the last line counts them.
#ifndef OVERLAP_TRAIN_CONV_EXPECT_H_
#define OVERLAP_TRAIN_CONV_EXPECT_H_

#include <cstdio>
#include <string>

namespace overlap_train::conv {

inline int failures = 0, checks = 0;

inline void Expect(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("FAILED %s\n", what.c_str());
}

// Prints the count behind the name of what was checked; returns the exit status.
inline int Verdict(const char* what) {
  std::printf("%s: %d of %d checks failed\n", what, failures, checks);
  return failures > 0;
}

}  // namespace overlap_train::conv

#endif  // OVERLAP_TRAIN_CONV_EXPECT_H_
