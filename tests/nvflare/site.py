"""A site of the simulated job: its update is known, and some of its results are bad."""

from typing import Any

import numpy as np


def answer(site: str, t: int, sent: Any) -> Any:
    """Site i adds i; the third sends NaN, the fourth what does not fit."""
    after = sent + np.float32(int(site.removeprefix("site-")))
    if site == "site-3":
        after[0, 0] = np.nan
    if site == "site-4":
        return after[:, :1] if t == 0 else sent + np.float32(1e6)
    return after


def main() -> None:
    import nvflare.client as flare  # noqa: PLC0415 - of the simulated process

    flare.init()
    site, t, meta = flare.get_site_name(), 0, {"NUM_STEPS_CURRENT_ROUND": 5}
    while flare.is_running():
        sent = flare.receive().params["numpy_key"]
        params, loss = {"numpy_key": answer(site, t, sent)}, float(np.abs(sent).sum())
        flare.send(flare.FLModel(params=params, metrics={"loss": loss}, meta=meta))
        t += 1


if __name__ == "__main__":
    main()
