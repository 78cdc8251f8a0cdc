"""The demo: from nothing to an autoscaled fleet, and what to do with it.

    python -m e2e.demo up      everything, and leave it running
    python -m e2e.demo env     shell lines that point kubectl and helm at it
    python -m e2e.demo down    stop it and leave nothing behind

With KUBECONFIG and REGISTRY in the environment it uses that cluster instead of making one.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.markup import escape

from e2e import demo_steps, diagnosis, release
from e2e.cluster.errors import BoxError
from e2e.kubectl import KubectlError
from e2e.progress import Progress, ToolFailed, run_tool
from e2e.prometheus import Prometheus, PrometheusError
from e2e.sites import BoxSite, Site, site, state_folder

_OURS = (BoxError, demo_steps.DemoError, KubectlError, PrometheusError, ToolFailed)
_EXPECTED = (*_OURS, OSError, ValueError, LookupError, subprocess.SubprocessError)


def up(place: Site, progress: Progress) -> None:
    """Run the demo; what it started keeps running, also when it fails."""
    names = place.bring_up(progress)
    prometheus = demo_steps.start_prometheus(place, progress)
    demo_steps.install_chart(place, names, progress)
    demo_steps.forget_old_engines(place, names, progress)
    demo_steps.serve_one(place, progress)
    demo_steps.autoscale(place, progress)
    demo_steps.tell_what_next(place, prometheus, progress)


def down(place: Site, progress: Progress) -> None:
    """Stop everything. On a cluster of the user's own: the services, the release and the CRD go, the cluster stays."""
    Prometheus(state_folder() / "prometheus").stop()
    demo_steps.engine_note().unlink(missing_ok=True)
    if isinstance(place, BoxSite):
        with progress.step("stop the cluster") as say:
            run_tool([sys.executable, "-m", "e2e.cluster", "down"], say)
    else:
        with progress.step("take the release away") as say:
            release.uninstall(place, say)


def environment(place: Site) -> str:
    """Shell lines for `eval`."""
    kubectl = place.kubectl
    plugins = Path(sys.executable).parent  # kubectl finds `kubectl-pagefleet` there
    return f'export KUBECONFIG="{kubectl.kubeconfig}"\nexport PATH="{Path(kubectl.binary).parent}:{plugins}:$PATH"'


def explain(place: Site, error: BaseException, progress: Progress) -> None:
    """Say what failed, what the cluster knows of it, and how to clean up."""
    progress.line(f"The demo stopped: {error}", style="bold red")
    try:
        place.kubectl.run("version", "--request-timeout=5s")
        progress.line(diagnosis.cause(place.kubectl))
    except _EXPECTED:
        progress.line("(there is no cluster to ask)")
    progress.line("Run `make demo` again to go on from here, or `make demo-stop` to clean up.", style="bold")


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 1 when a step failed and 130 when it was interrupted."""
    parser = argparse.ArgumentParser(
        prog="e2e.demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=("up", "env", "down"))
    command = parser.parse_args(argv).command
    signal.signal(signal.SIGTERM, _terminated)
    progress = Progress()
    try:
        place = site(os.environ)
    except ValueError as error:
        parser.error(str(error))
    given = os.environ.get("KUBECONFIG", "")
    if command != "env" and isinstance(place, BoxSite) and given not in {"", str(place.box.kubeconfig)}:
        progress.line("KUBECONFIG is ignored without REGISTRY: the demo uses a cluster of its own on this machine.")
    try:
        if command == "env":
            print(environment(place))
        else:
            (up if command == "up" else down)(place, progress)
    except KeyboardInterrupt:
        progress.line("Interrupted. Run `make demo` again to go on, or `make demo-stop` to clean up.", style="bold")
        return 130
    except _EXPECTED as error:
        if command == "up":
            explain(place, error, progress)
        else:
            progress.console.print(escape(str(error)), style="bold red")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
