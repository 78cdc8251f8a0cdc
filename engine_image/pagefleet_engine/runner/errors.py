"""Why a launch cannot run on this machine. Each message names the flag, the numbers and the way out."""


class LaunchImpossible(Exception):
    """The flags ask for what this machine or this model cannot give."""
