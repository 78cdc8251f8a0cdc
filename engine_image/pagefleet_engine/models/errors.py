"""Why a model cannot be served. Each message names the model, what was read and the way out."""


class ModelError(Exception):
    """The model of this launch cannot be served; the process ends with this message."""


class ModelNotFound(ModelError):
    """Nothing is where the URI points, or a file of the model is missing there."""


class ModelUnsupported(ModelError):
    """The model is whole, but this engine cannot run it."""


class ModelBroken(ModelError):
    """A file of the model is truncated or is not what its name says."""
