"""The JSON contract: the records of a diagnosis and of its parts."""

from __future__ import annotations

from layoutdoctor.diagnosis.answer import (
    Account,
    AccountKind,
    AccountRow,
    Comparison,
    Finding,
    Ratio,
    Recommendation,
    Severity,
    Verdict,
    WithoutFreezing,
)
from layoutdoctor.diagnosis.conversion import (
    Confidence,
    Conversion,
    ConversionDirection,
    ConversionPurpose,
    ConversionRole,
    CostSource,
    Owner,
    RedundantPair,
    TensorKind,
)
from layoutdoctor.diagnosis.diagnosis import Diagnosis, Reproduction
from layoutdoctor.diagnosis.graph import (
    Buffer,
    BufferRead,
    Convolution,
    ConvolutionClass,
    Decision,
    FxNode,
    Graph,
    GraphDirection,
    LayoutBreaker,
)
from layoutdoctor.diagnosis.kernel import Creations, Kernel, KernelSummary, SourceKind, Total, TotalKind, Waiting
from layoutdoctor.diagnosis.lack import Lack, LackPart
from layoutdoctor.diagnosis.layout import Layout, MemoryFormat, Size
from layoutdoctor.diagnosis.subject import Configuration, Environment, InputTensor, SourceLocation, Subject
from layoutdoctor.diagnosis.trial import (
    Equivalence,
    Failure,
    FailureCause,
    GradientLayout,
    Measurement,
    Observed,
    Rounds,
    TracedModel,
    TracedTensor,
    Trial,
    TrialStatus,
)
