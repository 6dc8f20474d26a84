"""The data sets known by name: files, checksums, mirrors, licences."""

from dataclasses import dataclass
from typing import Literal, final

from hewfl.core.validation import invalid
from hewfl.data.paths import DataFile, DatasetInfo, download_root, find

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
"""Of digits.csv.gz, which comes with the package; digits.md beside it says whence."""

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
    classes=("Scenario", "Sports", "Business", "Sci/Tech"),
    licence="non-commercial use",
    citation="Zhang2015",
)

CATALOGUE: dict[str, DatasetInfo] = {
    entry.name: entry for entry in (_DIGITS, _MNIST, _FASHION, _COVERTYPE, _AG_NEWS)
}


def entry_named(name: str) -> DatasetInfo:
    """The entry of a data set."""
    if name not in CATALOGUE:
        raise invalid("name", f"one of {', '.join(CATALOGUE)}", repr(name))
    return CATALOGUE[name]


# ------------------ What of the catalogue is here

State = Literal["embedded", "here", "partly here", "absent"]


@final
@dataclass(frozen=True, slots=True)
class Stock:
    """One data set and where its files are.

    Attributes:
        entry: of the catalogue.
        state: how much of it was found.
        place: `hewfl`, `HEWFL_DATA`, `cache`, or both of these; empty if absent.
    """

    entry: DatasetInfo
    state: State
    place: str


def take_stock(entry: DatasetInfo) -> Stock:
    """Look for the files of a data set without reading them."""
    if not entry.files:
        return Stock(entry, "embedded", "hewfl")
    found = [place for place in map(find, entry.files) if place is not None]
    ours = {place.is_relative_to(download_root()) for place in found}
    names = {False: "HEWFL_DATA", True: "cache"}
    place = ", ".join(names[is_ours] for is_ours in sorted(ours))
    if not found:
        return Stock(entry, "absent", place)
    whole = len(found) == len(entry.files)
    return Stock(entry, "here" if whole else "partly here", place)
