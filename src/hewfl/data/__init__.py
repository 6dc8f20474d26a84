"""Real data: loading, preparing and sharing it out among clients."""

from hewfl.data.catalogue import CATALOGUE
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch
from hewfl.data.formats import Texts
from hewfl.data.load import ag_news_texts, check, load
from hewfl.data.partition import (
    Partition,
    Rows,
    Sharing,
    class_counts,
    class_partition,
    dirichlet_partition,
    feature_partition,
    iid_partition,
    natural_partition,
    quantity_partition,
    shard_partition,
    share_out,
)
from hewfl.data.paths import DataFile, DatasetInfo
from hewfl.data.prepare import (
    Prepared,
    prepare,
    row_clients,
    row_labels,
    split_rows,
)

__all__ = [
    "CATALOGUE", "DataFile", "Dataset", "DatasetInfo", "Partition", "Prepared", "Rows",
    "Sharing", "Texts", "ag_news_texts", "check", "class_counts", "class_partition",
    "dirichlet_partition", "feature_partition", "fetch", "iid_partition", "load",
    "natural_partition", "prepare", "quantity_partition", "row_clients",
    "row_labels", "shard_partition", "share_out", "split_rows",
]  # fmt: skip
