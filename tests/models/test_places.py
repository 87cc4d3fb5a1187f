"""Where a model is: a name is asked of the hub once, and only where it is not here."""

from __future__ import annotations

import pytest
from huggingface_hub.errors import HfHubHTTPError

from distillspec.errors import UserError
from distillspec.models import places


class Refused(HfHubHTTPError):
    """An answer of the hub, whatever its constructor takes in this version."""

    def __init__(self):
        Exception.__init__(self, "404")


@pytest.mark.parametrize(
    ("raised", "told", "patient"),
    [(Exception("no connection"), "no connection", 0), (Refused(), "no such model", 1)],
)
def test_a_name_with_no_folder_is_sought_on_the_hub_without_waiting_for_a_network(
    monkeypatch, raised, told, patient
):
    """A misspelt `drafts/kd` was told of after 25 seconds, and of a connection alone."""
    asked = []

    def metadata(url):
        assert url.endswith("/drafts/kd/resolve/main/config.json")
        raise raised

    def config(source, **_):
        asked.append(source)
        raise OSError("no such model")

    monkeypatch.setattr(places, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(places.AutoConfig, "from_pretrained", config)
    with pytest.raises(UserError, match=f"no such folder is here, and the hub gave none: {told}"):
        places.read_config(places.find_place("drafts/kd"))
    assert len(asked) == patient


def test_a_model_of_the_hub_that_is_here_is_not_asked_for_twice(monkeypatch, tmp_path):
    """Without a network it loads as before."""
    monkeypatch.setattr(places, "try_to_load_from_cache", lambda *_: str(tmp_path))
    monkeypatch.setattr(places, "get_hf_file_metadata", None)  # a call would be a TypeError
    monkeypatch.setattr(places.AutoConfig, "from_pretrained", lambda source, **_: source)
    assert places.read_config(places.find_place("org/here")) == "org/here"
