"""Data sets: loading, preparation, partitions among clients."""

from hewfl.data.catalogue import (
    CATALOGUE,
    DataFile,
    DatasetInfo,
    DatasetStatus,
    dataset_status,
)
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch
from hewfl.data.formats import Texts
from hewfl.data.load import ag_news_texts, check, load
from hewfl.data.partitions import (
    Partition,
    PartitionSpec,
    TrainingRows,
    class_counts,
    class_partition,
    dirichlet_partition,
    feature_partition,
    iid_partition,
    natural_partition,
    partition,
    quantity_partition,
    shard_partition,
)
from hewfl.data.prepare import (
    Prepared,
    prepare,
    row_clients,
    row_labels,
    split_rows,
)

__all__ = [
    "CATALOGUE", "DataFile", "Dataset", "DatasetInfo", "DatasetStatus", "Partition",
    "PartitionSpec", "Prepared", "Texts", "TrainingRows", "ag_news_texts", "check",
    "class_counts", "class_partition", "dataset_status", "dirichlet_partition",
    "feature_partition", "fetch", "iid_partition", "load", "natural_partition",
    "partition", "prepare", "quantity_partition", "row_clients", "row_labels",
    "shard_partition", "split_rows",
]  # fmt: skip
