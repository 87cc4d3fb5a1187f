"""One function a verb: settings in, a result for JSON out. `cli` maps the verbs to them."""
