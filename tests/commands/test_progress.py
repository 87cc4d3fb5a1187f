"""Messages on stderr."""

from distillspec.commands.progress import console


def test_a_name_is_printed_as_it_is(capsys):
    """Long paths were broken over lines, `[v2]` was taken for a style and `[/x]` for its end."""
    told = "loading " + "/a-long-name" * 20 + "/[v2]/[/x]"
    console().print(told)
    assert capsys.readouterr().err == told + "\n"
