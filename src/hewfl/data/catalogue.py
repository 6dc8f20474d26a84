"""Published data sets: files, checksums, mirrors, licences, and local status."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from hewfl.core.validation import invalid
from hewfl.data.paths import download_root, file_sha256, find_file

_BLOCK = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class DataFile:
    """One published file.

    Attributes:
        path: path below the data folder.
        size: bytes; 0 if not known.
        sha256: checksums of the file in its known containers.
        content_sha256: checksum of the decompressed bytes, where published containers
            differ only in the gzip header.
        urls: mirrors, tried in this order; empty if the file is not published.
    """

    path: str
    size: int
    sha256: tuple[str, ...]
    content_sha256: str | None = None
    urls: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """One data set of the catalogue.

    Attributes:
        name: argument of `load`.
        title: usual name.
        files: all files of the data set.
        samples: rows of the training and of the test part (0: none is published).
        features: numbers per row.
        classes: their names, in the order of the labels 0, 1, ...
        licence: the publisher's terms.
        citation: key in the bibliography of `PAPER.md`.
        shape: of one image, channels first; empty if samples are no images.
    """

    name: str
    title: str
    files: tuple[DataFile, ...]
    samples: tuple[int, int]
    features: int
    classes: tuple[str, ...]
    licence: str
    citation: str
    shape: tuple[int, ...] = ()

    @property
    def is_downloadable(self) -> bool:
        """Whether every file has a mirror."""
        return all(file.urls for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def how_to_get(self) -> str:
        """The advice at the end of every error about absent or damaged files."""
        files = ", ".join(file.path for file in self.files)
        by_hand = f"put {files} into a folder and set HEWFL_DATA to it"
        if self.is_downloadable:
            command = f"run `hewfl data get {self.name}` where there is a network"
            return f"{command}, or {by_hand}"
        return f"{by_hand} (not all of them can be downloaded)"


def verify_file(path: Path, file: DataFile) -> tuple[str, str | None]:
    """The sha256 of a file, and the rule that it breaks, if any.

    An unknown gzip container passes if its content is the known one.
    """
    sha256 = file_sha256(path)
    if sha256 in file.sha256:
        return sha256, None
    if file.content_sha256 is not None:
        try:
            if _content_sha256(path) == file.content_sha256:
                return sha256, None
        except (OSError, EOFError, zlib.error) as error:
            return sha256, f"must be a sound gzip file; got {error}"
    size = f"{path.stat().st_size} bytes of {file.size}"
    return sha256, f"must have sha256 {file.sha256[0]}; got {sha256} ({size})"


def _content_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with gzip.open(path) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


_IMAGES = tuple(
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)


def _idx_files(
    folder: str, mirrors: tuple[str, ...], *known: tuple[int, str]
) -> tuple[DataFile, ...]:
    """Images and labels of the training and of the test part; sizes and checksums."""
    return tuple(
        DataFile(
            f"{folder}/{name}",
            size,
            (sha256,),
            None,
            tuple(f"{m}/{name}" for m in mirrors),
        )
        for name, (size, sha256) in zip(_IMAGES, known, strict=True)
    )


DIGITS_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
"""Of digits.csv.gz, part of the package; digits.md beside it names the source."""

_DIGITS = DatasetInfo(
    name="digits",
    title="Optical digits of 8 × 8 pixels, part of hewfl",
    files=(),
    samples=(1797, 0),
    features=64,
    classes=tuple("0123456789"),
    licence="CC BY 4.0",
    citation="Alpaydin1998",
)

# Mirrors of MNIST and Fashion-MNIST are those of torchvision; the original MNIST page
# no longer serves the files.
_MNIST = DatasetInfo(
    name="mnist",
    title="MNIST handwritten digits",
    files=_idx_files(
        "mnist",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    samples=(60000, 10000),
    features=784,
    classes=tuple("0123456789"),
    licence="none stated; often CC BY-SA 3.0",
    citation="LeCun2010",
    shape=(1, 28, 28),
)

_FASHION = DatasetInfo(
    name="fashion_mnist",
    title="Fashion-MNIST garments",
    files=_idx_files(
        "fashion-mnist",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
        (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    samples=(60000, 10000),
    features=784,
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    licence="MIT",
    citation="Xiao2017",
    shape=(1, 28, 28),
)

_COVERTYPE = DatasetInfo(
    name="covertype",
    title="Forest cover types",
    files=(
        DataFile(
            "covtype/covtype.data.gz",
            11240707,
            (
                # as published (scikit-learn's checksum), and with a zeroed timestamp
                "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
                "db77ddee6056d4297a443dff42cf850d54416987d1b02992d36ff90c228c998c",
            ),
            "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
            (
                "https://ndownloader.figshare.com/files/5976039",  # scikit-learn's
                "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/"
                "covtype.data.gz",
            ),
        ),
    ),
    samples=(581012, 0),
    features=54,
    classes=(
        *("Spruce/Fir", "Lodgepole Pine", "Ponderosa Pine", "Cottonwood/Willow"),
        *("Aspen", "Douglas-fir", "Krummholz"),
    ),
    licence="CC BY 4.0",
    citation="Blackard1998",
)

_AG_NEWS = DatasetInfo(
    name="ag_news",
    title="AG News, 30,000-row training subset, as MPNet features",
    files=(
        DataFile(
            "ag_news/train_subset_30k.csv.gz",
            3053540,
            ("416d33a52e9791c08b2e48109fc94480874cab83fc56aeee4f6710c1530e76f5",),
            "213593099e9d8cf536673715c9119b7132da3540f71ba3a3901a090d086ee41c",
        ),
        DataFile(
            "ag_news/test.csv.gz",
            748824,
            ("3c277beb6ce3dd635407635cb90a7c5ceaf87168fabb3be218e39aa2b097f706",),
            "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
        ),
        DataFile(
            "ag_news/features/train_subset_30k.mpnet768.f16.npy",
            46080128,
            ("0ac4413ac2b7b3488877a431d1c511a3ceb7395d7419c642431c657fc3ee07e9",),
        ),
        DataFile(
            "ag_news/features/test.mpnet768.f16.npy",
            11673728,
            ("361f9aff735d5a68eca3d1b2dab1de31c4ff1fd07862a6da132ddf8971be9c90",),
        ),
    ),
    samples=(30000, 7600),
    features=768,
    classes=("World", "Sports", "Business", "Sci/Tech"),
    licence="non-commercial use",
    citation="Zhang2015",
)

_CIFAR_10 = DatasetInfo(
    name="cifar10",
    title="CIFAR-10, small colour photographs",
    files=(
        # The binary version: the other ones are a pickle and a Matlab file.
        DataFile(
            "cifar/cifar-10-binary.tar.gz",
            170052171,
            ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
            None,
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        ),
    ),
    samples=(50000, 10000),
    features=3072,
    classes=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    licence="none stated",
    citation="Krizhevsky2009",
    shape=(3, 32, 32),
)

_CIFAR_100_CLASSES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy "
    "bridge bus butterfly camel can castle caterpillar cattle chair chimpanzee "
    "clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant "
    "flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower "
    "leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom "
    "oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate "
    "poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark "
    "shrew skunk skyscraper snail snake spider squirrel streetcar sunflower "
    "sweet_pepper table tank telephone television tiger tractor train trout tulip "
    "turtle wardrobe whale willow_tree wolf woman worm "
)

_CIFAR_100 = DatasetInfo(
    name="cifar100",
    title="CIFAR-100, with its fine labels",
    files=(
        DataFile(
            "cifar/cifar-100-binary.tar.gz",
            168513733,
            ("58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",),
            None,
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
        ),
    ),
    samples=(50000, 10000),
    features=3072,
    classes=tuple(_CIFAR_100_CLASSES.split()),
    licence="none stated",
    citation="Krizhevsky2009",
    shape=(3, 32, 32),
)

_DIGITS_AND_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _emnist(
    name: str, split: str, samples: tuple[int, int], classes: str
) -> DatasetInfo:
    """A split of EMNIST; all are in one archive."""
    archive = DataFile(
        "emnist/gzip.zip",
        561753746,
        ("fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",),
        None,
        ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
    )
    return DatasetInfo(
        name=name,
        title=f"EMNIST handwritten characters, split {split}",
        files=(archive,),
        samples=samples,
        features=784,
        classes=tuple(classes),
        licence="none stated",
        citation="Cohen2017",
        shape=(1, 28, 28),
    )


_EMNIST = (
    _emnist(
        "emnist", "balanced", (112800, 18800), f"{_DIGITS_AND_LETTERS[:36]}abdefghnqrt"
    ),
    _emnist("emnist_letters", "letters", (124800, 20800), _DIGITS_AND_LETTERS[10:36]),
    _emnist("emnist_byclass", "byclass", (697932, 116323), _DIGITS_AND_LETTERS),
)

_FEMNIST = DatasetInfo(
    name="femnist",
    title="FEMNIST: EMNIST characters by writer",
    files=(
        DataFile(
            "femnist/fed_emnist.tar.bz2",
            0,
            ("fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",),
            None,
            (
                "https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2",
                "https://fedml.s3-us-west-1.amazonaws.com/fed_emnist.tar.bz2",
            ),
        ),
    ),
    samples=(671585, 77483),
    features=784,
    classes=tuple(_DIGITS_AND_LETTERS),
    licence="none stated",
    citation="Caldas2018",
    shape=(1, 28, 28),
)

CATALOGUE: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        *(_DIGITS, _MNIST, _FASHION, *_EMNIST, _FEMNIST, _CIFAR_10, _CIFAR_100),
        *(_COVERTYPE, _AG_NEWS),
    )
}


def dataset_info(name: str) -> DatasetInfo:
    """The entry of a data set in the catalogue.

    Raises:
        InvalidInputError: the name is unknown.
    """
    if name not in CATALOGUE:
        raise invalid("name", f"one of {', '.join(CATALOGUE)}", repr(name))
    return CATALOGUE[name]


@final
@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """A data set and the place of its files.

    Attributes:
        info: entry of the catalogue.
        state: how many of its files are here.
        place: `hewfl`, `HEWFL_DATA`, `cache`, or both of these; empty if absent.
    """

    info: DatasetInfo
    state: Literal["embedded", "here", "partly here", "absent"]
    place: str


def dataset_status(info: DatasetInfo) -> DatasetStatus:
    """Search for the files of a data set without reading them.

    Args:
        info: the data set, from `CATALOGUE`.

    Returns:
        Where each file is, or that it is absent.
    """
    if not info.files:
        return DatasetStatus(info, "embedded", "hewfl")
    paths = [path for file in info.files if (path := find_file(file.path)) is not None]
    if not paths:
        return DatasetStatus(info, "absent", "")
    cached = {path.is_relative_to(download_root()) for path in paths}
    place = ", ".join(
        "cache" if is_cached else "HEWFL_DATA" for is_cached in sorted(cached)
    )
    is_whole = len(paths) == len(info.files)
    return DatasetStatus(info, "here" if is_whole else "partly here", place)
