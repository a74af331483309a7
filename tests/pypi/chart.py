"""Renders the chart with Helm's own engine: chart.py CHART VALUES.json, one file of manifests on standard output.

What Helm refuses goes to standard error, and the exit code is 1. `lint` in place of VALUES.json lints with Helm's rules.
"""

import json
import sys

import helm_python as helm


def main() -> int:
    chart, what = sys.argv[1:]
    if what == "lint":
        report = helm.lint(chart, strict=True, quiet=True)
        found = [message for message in report["messages"] if message["severity"] >= 2]
        print(json.dumps(found + report["errors"], indent=1))
        return 1 if found or report["errors"] else 0
    with open(what, encoding="utf-8") as file:
        values = json.load(file)
    try:
        with helm.Chart.load(chart) as loaded:
            loaded.validate_schema(loaded.merge_values(values))
            rendered = loaded.render(values, name="tidegate", namespace="kube-system")
    except helm.HelmError as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in sorted(rendered.items()):
        if path.endswith(".yaml") and text.strip():
            print(f"---\n# {path}\n{text.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
