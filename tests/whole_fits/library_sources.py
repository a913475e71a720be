"""Training data that Hugging Face and Grain make, by name; empty of a library that is not installed."""

import importlib.util

import numpy as np

from tests.networks import arrays

X, Y = arrays()
BATCH = 16
INSTALLED = {name: importlib.util.find_spec(name) is not None for name in ("datasets", "grain")}


def rows():
    """Returns the rows as a dataset of Hugging Face's."""
    import datasets

    return datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})


def table(**options):
    arguments = {"columns": "x", "label_cols": "y", "batch_size": BATCH} | options
    return rows().to_tf_dataset(**arguments)


def collated():
    def collate(features):
        return {name: np.stack([each[name] for each in features]) for name in features[0]}

    return table(collate_fn=collate)


def transformed():
    """Its rows are made by a function of the user's, which draws from NumPy's global generator."""

    def noisy(batch):
        x = np.asarray(batch["x"], "float32")
        return {"x": list(x + 0.1 * np.random.normal(size=x.shape).astype("float32")), "y": batch["y"]}

    made = rows().with_transform(noisy)
    return made.to_tf_dataset(columns="x", label_cols="y", batch_size=BATCH)


def streamed():
    stream = rows().to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=50).repeat(None)
    batches = stream.with_format("numpy").iter(BATCH)
    return ((batch["x"], batch["y"]) for batch in batches)


def by_index():
    import grain

    made = grain.MapDataset.source(list(zip(X, Y, strict=True))).shuffle(seed=3)
    return made.batch(BATCH, drop_remainder=True).repeat()


def by_state():
    import grain

    made = grain.MapDataset.source(list(zip(X, Y, strict=True))).shuffle(seed=3).repeat().to_iter_dataset()
    noisy = made.seed(4).random_map(lambda row, rng: (row[0] + 0.1 * rng.normal(size=row[0].shape), row[1]))
    cast = noisy.map(lambda row: (row[0].astype("float32"), row[1]))
    return grain.experimental.WindowShuffleIterDataset(cast, window_size=40, seed=1).batch(BATCH)


def loader():
    import grain

    sampler = grain.samplers.IndexSampler(num_records=len(X), shuffle=True, seed=2)
    operations = [grain.transforms.Batch(BATCH, drop_remainder=True)]
    return grain.DataLoader(
        data_source=list(zip(X, Y, strict=True)), sampler=sampler, operations=operations, worker_count=0
    )


# What makes them, the steps of an epoch, and whether a training on them can be resumed.
HUGGING_FACE = {
    "hugging face in order": (table, None, True),
    "hugging face shuffled": (lambda: table(shuffle=True), None, True),
    "hugging face reshuffled": (
        lambda: table().shuffle(5, seed=3).map(lambda x, y: (x * 2, y)),
        None,
        True,
    ),
    "hugging face collated": (collated, None, False),
    "hugging face transformed": (transformed, None, False),
    "hugging face streamed": (streamed, 5, True),
}
GRAIN = {
    "grain by index": (by_index, 5, True),
    "grain by state": (by_state, 5, True),
    "grain loader": (loader, 5, True),
}
SOURCES = (HUGGING_FACE if INSTALLED["datasets"] else {}) | (GRAIN if INSTALLED["grain"] else {})
