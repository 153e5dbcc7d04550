"""`millrace config`: the configuration in force, from all sources."""

import sys

from millrace.cli.shared.common import AsJson, ConfigFile, Overrides, example, load_config, print_json, single

app = single()


@app.command(
    epilog=example("millrace config > millrace.toml", "millrace config --config millrace.toml --json")
)
def config(config: ConfigFile = None, set_: Overrides = None, json: AsJson = False) -> None:
    """Print the effective configuration as commented TOML.

    Sources in rising order: defaults, the file, environment variables MILLRACE_SECTION__KEY, --set.
    """
    from millrace.node.config import as_table, describe

    effective = load_config(config, overrides=set_)
    if json:
        print_json(as_table(effective))
    else:
        sys.stdout.write(describe(effective))
