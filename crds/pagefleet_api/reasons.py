"""Condition types, reasons and Event names: API, so that alerts and scripts may match on them."""

from enum import StrEnum


class ConditionType(StrEnum):
    """Positive conditions; `RECONCILING` and `STALLED` exist only while true, as kstatus reads them."""

    READY = "Ready"
    FITS = "Fits"
    SCALING_ACTIVE = "ScalingActive"
    ABLE_TO_SCALE = "AbleToScale"
    SCALING_LIMITED = "ScalingLimited"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Reason(StrEnum):
    """Why a condition is as it is."""

    # Ready
    SERVING = "Serving"
    PAUSED = "Paused"
    STARTING = "Starting"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONFIG_MISSING = "ConfigMissing"
    MOUNT_FAILED = "MountFailed"
    CRASH_LOOP = "CrashLoop"
    OUT_OF_MEMORY = "OutOfMemory"
    ENGINE_UNREADY = "EngineUnready"
    NODE_LOST = "NodeLost"
    NODE_REFUSED = "NodeRefused"
    EVICTED = "Evicted"
    INVALID_SPEC = "InvalidSpec"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ADMISSION_DENIED = "AdmissionDenied"
    SERVICE_ACCOUNT_MISSING = "ServiceAccountMissing"
    NAME_CONFLICT = "NameConflict"
    # Reconciling, Stalled
    ROLLING_OUT = "RollingOut"
    SCALING = "Scaling"
    DRAINING = "Draining"
    APPLYING = "Applying"
    PREDECESSOR_LEAVING = "PredecessorLeaving"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    APPLY_FAILED = "ApplyFailed"
    ON_TRIAL = "OnTrial"
    SLO_REGRESSION = "SLORegression"
    # Fits; the first two of Ready, Reconciling and Stalled too
    TOO_LARGE = "TooLarge"
    READING_MODEL = "ReadingModel"
    ESTIMATED = "Estimated"
    MEASURED = "Measured"
    MODEL_UNKNOWN = "ModelUnknown"
    GPU_TYPE_UNKNOWN = "GPUTypeUnknown"
    # ScalingActive, AbleToScale, ScalingLimited
    VALID_METRICS = "ValidMetrics"
    METRICS_STALE = "MetricsStale"
    METRICS_PARTIAL = "MetricsPartial"
    WAITING_FOR_METRICS = "WaitingForMetrics"
    READY_FOR_NEW_SCALE = "ReadyForNewScale"
    STABILIZED = "Stabilized"
    PENDING_PODS = "PendingPods"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    TOO_FEW_REPLICAS = "TooFewReplicas"
    TOO_MANY_REPLICAS = "TooManyReplicas"
    WITHIN_RANGE = "DesiredWithinRange"
    SCALE_UP_LIMIT = "ScaleUpLimit"
    SCALE_DOWN_LIMIT = "ScaleDownLimit"
    RECOMMEND_ONLY = "RecommendOnly"
    REPLICAS_IGNORED = "ReplicasIgnored"
    NOT_AUTOSCALED = "NotAutoscaled"
    # decisions only, beside the metric types and the reasons above
    STEADY = "Steady"
    LOAD_FITS_FEWER = "LoadFitsFewer"
    FEWER_QUEUED = "FewerQueued"
    FALLBACK_REPLICAS = "FallbackReplicas"


class EventReason(StrEnum):
    """Reasons of the Events on an InferenceService; one for each change, none for each tick."""

    SCALED_UP = "ScaledUp"
    SCALED_DOWN = "ScaledDown"
    RECOMMENDED = "Recommended"
    DRAINING = "Draining"
    DRAINED = "Drained"
    DRAIN_TIMED_OUT = "DrainTimedOut"
    UNDRAINED = "Undrained"
    TRIAL_STARTED = "TrialStarted"
    TRIAL_PASSED = "TrialPassed"
    TRIAL_SKIPPED = "TrialSkipped"
    ROLLED_BACK = "RolledBack"
    READY = "Ready"
    NOT_READY = "NotReady"
    INVALID_SPEC = "InvalidSpec"
