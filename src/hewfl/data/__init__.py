"""Real data: loading, preparing and sharing it out among clients."""

from hewfl.data.catalogue import CATALOGUE
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch
from hewfl.data.entry import DataFile, Entry
from hewfl.data.formats import Texts
from hewfl.data.load import ag_news_texts, check, load
from hewfl.data.partition import (
    Partition,
    class_counts,
    dirichlet_partition,
    iid_partition,
)
from hewfl.data.prepare import (
    Prepared,
    prepare,
    row_clients,
    row_labels,
    split_rows,
)
from hewfl.data.sharing import Rows, Sharing, share_out
from hewfl.data.skews import (
    class_partition,
    feature_partition,
    natural_partition,
    quantity_partition,
    shard_partition,
)

__all__ = [
    "CATALOGUE", "DataFile", "Dataset", "Entry", "Partition", "Prepared", "Rows",
    "Sharing", "Texts", "ag_news_texts", "check", "class_counts", "class_partition",
    "dirichlet_partition", "feature_partition", "fetch", "iid_partition", "load",
    "natural_partition", "prepare", "quantity_partition", "row_clients",
    "row_labels", "shard_partition", "share_out", "split_rows",
]  # fmt: skip
