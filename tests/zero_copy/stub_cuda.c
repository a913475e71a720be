// Stands in for libcuda: memory from the C library, one GPU that does not exist, and a record of all calls.
// The tests set what it should answer through the stub_* functions.
#include <stdlib.h>
#include <string.h>

#define MOST_BLOCKS 4096
#define SHIFT 0x100000000000ULL  // device addresses differ from host addresses, as without unified addressing

static struct {
  char function[64];
  int code;
} failure;
static int devices = 1, version = 12040, integrated = 0, can_map = 1, alignment = 4096;
static void* blocks[MOST_BLOCKS];
static int depth;
static char calls[1 << 20];

static int enter(const char* name) {
  if (strlen(calls) + strlen(name) + 2 < sizeof calls) {
    strcat(calls, name);
    strcat(calls, " ");
  }
  return strcmp(failure.function, name) == 0 ? failure.code : 0;
}

#define ENTER(name)          \
  do {                       \
    int code_ = enter(name); \
    if (code_) return code_; \
  } while (0)

void stub_reset(void) {
  failure.function[0] = 0;
  devices = 1, version = 12040, integrated = 0, can_map = 1, alignment = 4096, depth = 0;
  calls[0] = 0;
  memset(blocks, 0, sizeof blocks);
}
void stub_fail(const char* function, int code) {
  strncpy(failure.function, function, sizeof failure.function - 1);
  failure.code = code;
}
void stub_set(int new_devices, int new_version, int new_integrated, int new_can_map, int new_alignment) {
  devices = new_devices, version = new_version, integrated = new_integrated, can_map = new_can_map;
  alignment = new_alignment;
}
const char* stub_calls(void) { return calls; }
int stub_context_depth(void) { return depth; }
int stub_live_blocks(void) {
  int live = 0;
  for (int i = 0; i < MOST_BLOCKS; ++i) live += blocks[i] != NULL;
  return live;
}

int cuInit(unsigned flags) {
  (void)flags;
  ENTER("cuInit");
  return 0;
}
int cuDriverGetVersion(int* out) {
  ENTER("cuDriverGetVersion");
  *out = version;
  return 0;
}
int cuDeviceGetCount(int* out) {
  ENTER("cuDeviceGetCount");
  *out = devices;
  return 0;
}
int cuDeviceGet(int* out, int ordinal) {
  ENTER("cuDeviceGet");
  *out = 70 + ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  (void)device;
  ENTER("cuDeviceGetName");
  strncpy(name, "Stub GPU", size);
  return 0;
}
int cuDeviceGetAttribute(int* out, int attribute, int device) {
  (void)device;
  ENTER("cuDeviceGetAttribute");
  *out = attribute == 18 ? integrated : attribute == 19 ? can_map : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** out, int device) {
  (void)device;
  ENTER("cuDevicePrimaryCtxRetain");
  *out = &devices;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  ENTER("cuCtxPushCurrent_v2");
  if (context != &devices) return 201;
  ++depth;
  return 0;
}
int cuCtxPopCurrent_v2(void** out) {
  ENTER("cuCtxPopCurrent_v2");
  if (depth == 0) return 201;
  --depth;
  *out = &devices;
  return 0;
}
int cuCtxSynchronize(void) {
  ENTER("cuCtxSynchronize");
  return depth ? 0 : 201;
}
int cuMemHostAlloc(void** out, size_t size, unsigned flags) {
  ENTER("cuMemHostAlloc");
  if (depth == 0) return 201;
  if (flags != 3) return 1;
  for (int i = 0; i < MOST_BLOCKS; ++i) {
    if (blocks[i]) continue;
    void* base = NULL;
    if (posix_memalign(&base, 4096, size + 4096)) return 2;
    // An alignment below 4096 is made by pointing behind the beginning.
    blocks[i] = alignment < 4096 ? (char*)base + alignment : base;
    *out = blocks[i];
    return 0;
  }
  return 2;
}
int cuMemHostGetDevicePointer_v2(void** out, void* host, unsigned flags) {
  (void)flags;
  ENTER("cuMemHostGetDevicePointer_v2");
  *out = (void*)((unsigned long long)host + SHIFT);
  return 0;
}
int cuMemFreeHost(void* host) {
  ENTER("cuMemFreeHost");
  for (int i = 0; i < MOST_BLOCKS; ++i) {
    if (blocks[i] != host) continue;
    blocks[i] = NULL;
    free((void*)((unsigned long long)host & ~4095ULL));
    return 0;
  }
  return 1;
}
int cuGetErrorName(int code, const char** out) {
  *out = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER";
  return 0;
}
