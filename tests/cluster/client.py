"""A client that a test kills: does marked tasks on a cluster.

python -m tests.cluster.client ADDRESS MARKS COUNT SECONDS
"""

import sys
from pathlib import Path

from hewfl.experiments.dask_executor import cluster_at
from tests.cluster.tasks import marked_tasks

if __name__ == "__main__":
    address, marks, count, seconds = sys.argv[1:]
    with cluster_at(address) as cluster:
        tasks = marked_tasks(int(count), Path(marks), float(seconds))
        cluster.execute(tasks, lambda *_: None, lambda _: None)
