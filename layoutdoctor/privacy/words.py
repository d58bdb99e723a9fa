"""
Words that are nobody's secret: parts of torch's operator names, its module classes, and the words of its messages.

Made from torch 2.13's operator schemas, ``torch.nn`` and the messages in its Python code; redacting keeps these and
replaces what it does not know.
"""

from __future__ import annotations

WORDS = frozenset(
    """
    abi able about above abs absolute abstract accelerator accept acceptable accepts access accessed accessing
    according accumulate accumulated accumulator accurate acl acos acosh across activation active actual actually
    adagrad adam adamw adaptive add addbmm addcdiv addcmul added adding addition additional additionally addmm
    addmv addr adds addstatvalue adjoint affect affine after again against airy algorithm algorithms alias aliases
    aliasing aligned alignment all allclose allgather alloc allocated allocation allow allowed allowing allows
    allreduce alltoall along alpha already also although always amax ambiguous amin aminmax amount amp analysis
    and angle annotation annotations anomaly another any anything api appear appears append application applied
    applies apply applying appropriate arange arbitrary arccos arccosh arcsin arcsinh arctan arctan2 arctanh are
    aren arg argmax argmin args argsort argument arguments argwhere arithmetic around array artifact artifacts
    arxiv asarray asin asinh assert assign assigned associated assume assumed assumes assuming async atan atan2
    atanh aten atleast attempt attempted attempting attempts attention attr attribute attributes attrs auto
    autocast autograd autogradadd autogradallnonzero autogradallzero autogradanynonzero autogradzero autoload
    automatic automatically autotune autotuning available avg avoid avoids awaitable awaits aware axis back backed
    backend backends backward backwards bad baddbmm bag bailout bailouttemplate barrier bartlett base based basic
    batch batched because become becomes been before beginning behavior being below benchmark benchmarking
    bernoulli bessel best better between bf16 bfloat16 bias bicubic2d bilinear bilinear2d bin binary bincount
    binomial bit bits16 bits1x8 bits2x4 bits4x2 bits8 bitwise blackman blob block blocks bmm body bool boolean
    both bound boundaries boundary bounds break breaks broadcast broadcasting broadcastmkldnntensors
    broadcastsizes bsc bsr bucketize buffer buffers bug build building builds built builtin builtins but byte
    bytecode bytes c2c c2r cache cached cachemask caches caching calculate calculated calculation call callable
    callables callback called caller callers calling calls can cannot canonical capability capitalize capture
    captured captures cartesian case cases cast cat cauchy cause causes cbrt ccol cdata cdist cdouble ceil cell
    celu center certain cfloat chain chalf change changed changes changing channel channels char chebyshev check
    checked checking checkpoint checks child children choice choices cholesky choose chr chunk chunksizes circular
    clamp class classes classproperty clean clear clip clone closure cls coalesce coalesced code codegen col
    col2im collapse collect collected collecting collection collections collective collectives column combination
    combinations combine combined come command comment commit common compare compared comparing comparison
    compatibility compatible compilation compile compiled compiler compiles compiling complete complex complex128
    complex32 complex64 compleximplicit components compress compressed computation compute computed computes
    computing concat concatenate concrete cond condition conditions config configs configuration configurations
    confirmed conj consecutive consider considered consistent consists const constant constantchunk
    constantmkldnntensor constants constrain constraint constraints construct constructed construction constructor
    consumed contain contained container containing contains content contents context contexts contiguous control
    controls conv conv1d conv2d conv3d convenience convention conversion convert converted converting converts
    convolution coo copied copies copy copying copysign core corrcoef correct correctly correctness correspond
    corresponding corresponds cos cosh cosine cost could count counter counts cov cpp cpu create created creates
    creating creation cross crow csc cslt csr ctc cts ctx ctypes cuda cuda12 cudagraph cudnn cufft cummax
    cummaxmin cummin cumprod cumsum cumulative cupti current currently custom cutlass cxx11 data dataclasses
    datapipe dead debug debugging decide decisions decomp decompose decomposition decorator decrement deepcopy def
    default defaults deferred define defined defines definition deg2rad degrees delattr delete delitem denormal
    dense dep depend dependencies dependency dependent depending depends deploy deprecated deps depth depthwise
    depthwise2d depthwise3d dequantize derive derived described describes description desired det detach detailed
    details detect detected detection determine determined determines deterministic device devices diag diagflat
    diagonal dict dictionaries dictionary did diff difference different differentiable differentiablegraph differs
    digamma dilated2d dilated3d dilation dim dimension dimensional dimensions dimi dims dimv dir direct directly
    directory dirichlet disable disabled disk dispatch dist distance distributed distributions div divide
    divisible divmod dlpack doc docs docstr documentation does doesn doing don done dot dotted double down
    downstream draw dropout dropout1d dropout2d dropout3d dsmm dsplit dstack dtensor dtype dtypes dual due dummy
    duplicate during dyn dynamic dynamically dynamo e2m1fn e4m3fn e4m3fnuz e5m2 e5m2fnuz e8m0fnu each eager
    eagerly easier easily edges eff effect effects efficient efficientzerotensor eig eigh eigvals eigvalsh einsum
    either element elements elemt else elu embed embedding emit emits empty enable enabled enables enabling
    encoder encountered end endif endswith engine enough ensure ensures entire entirely entr entries entropy entry
    enum enumname enumvalue env environment epilogue equal equivalent erf erfc erfcx erfinv error errors estimate
    estimated etc euclidean evaluate evaluated evaluation even event events every exact exact1d exact2d exact3d
    exactly example examples except exception exchange execute executed executing execution exist existing exists
    exit exp exp2 expand expanded expandtabs expect expected expects expensive experimental expit explicit
    explicitly expm1 exponential export expr expression expressions extend extension extern external extra extract
    extracts eye fabs factor factorial factory fail failed failing fails failure fake fall fallback fallbackgraph
    falling falls false fast faster fbgemm feature features few fft fft2 fftfreq fftn fftshift field fields file
    filename files fill filled filter filtering final finally find fine finfo finite first fix fixed flag flags
    flash flat flatten flattened flip fliplr flipud float float16 float32 float4 float64 float8 floatimplicit
    floating floatlist floor floordiv flow flush fmax fmin fmod fold follow followed following follows foo foobar
    for force foreach fork form format forward found fp16 fp32 frac fractional frame frames free freeze fresh
    frexp frobenius from frombuffer full fullprec fully func function functional functionality functionalization
    functionalize functions functools functorch further fuse fused fusedconcat fusion fusiongroup future futures
    fwd gamma gammainc gammaincc gammaln gather gaussian gcd gelu gemm general generally generate generated
    generates generating generation generator generic geometric geqrf ger get getattr getattribute getitem gets
    getstate github give given gives glob global globals glu going good got gpu grad gradient gradients grads
    graph graphs greater grid group grouped groups gru guaranteed guard guards gumbel had half hamming handle
    handled handler handles handling hann happen happens hardshrink hardsigmoid hardswish hardtanh has hash have
    having head heaviside help helper helpful helps here hermite heuristic heuristics hex hfft hfft2 hfftn hidden
    high higher hinge hint hints histc histogram histogramdd hit hold holds hook hooks host hot householder how
    however hsmm hsplit hspmm hstack https hub huber hypot i0e i1e iadd iand identical identifier identify
    identity idiv idx ifft ifft2 ifftn ifftshift ifloordiv ifthenelse igamma igammac ignore ignored
    ignoredpythonop ignoring ihfft ihfft2 ihfftn iinfo ilshift im2col imag image immediately immutable imod impl
    implement implementation implementations implemented implements implicit import important importlib improve
    imul include included includes including incompatible incorrect increase increasing increment independent
    index indexed indexing indicate indicates indicating indices individual inductor inf infer inference inferred
    infinitely info information init initial initialization initialize initialized inline inlined inner inplace
    input inputs insert inserted inside inspect install installed instance instances instead instruction
    instructions int int1 int16 int2 int3 int32 int4 int4mm int4pack int5 int6 int64 int7 int8 int8pack integer
    integers intended interface interleave intermediate intermediates internal internally internals interop
    interpolate intimplicit intlist into ints inv invalid inverse invert invocation invoked ior iota ipow ipu
    irecv irfft irfft2 irfftn irshift isalnum isalpha isclose isdecimal isdigit isend isfinite isidentifier isin
    isinf islower isn isnan isneginf isnot isnumeric isposinf isprintable isreal isspace issue issues istft
    istitle isub isupper ite item items itemsize iter iterable iterate iteration iterations iterator itruediv its
    itself ivalue ixor jagged jit join joint just jvp kaiser keep keeps kept kernel kernels key keys keyword know
    known kron kthvalue kwarg kwargs laguerre lambda lanczos2d lapack large larger largest last later layer layers
    layout lazily lazy lcm ldexp ldl lead leading leaf leaky learnable least leaves left legacy legendre legit len
    length lengths lerp less let lets level lgamma lib libraries library lift like likely limit limited linalg
    line linear linear1d linspace list lists live ljust load loaded loader loading loads lobpcg local location log
    log10 log1p log2 logaddexp logaddexp2 logcumsumexp logdet logging logic logical logit logits logs logsigmoid
    logspace logsumexp long longer look looking looks lookup loop loops loss loss2d low lower lowering lowrank
    lshift lstm lstrip lstsq made maia main maintain maintaining make makes making management manager managers
    manages managing manual manually many map map2 mapped mapping maps margin mark marked mask masked match
    matched matches matching materialize math mathremainder matmul matrix max maximum may mean means mechanism
    median mem memory merge meshgrid message messages meta metadata meth method methods mha might migration min
    minimal minimum miopen mirror mish mismatch missing mix mixed mkl mkldnn mkldnnclamp mkldnnhardsigmoid
    mkldnnhardswish mkldnnhardtanh mkldnnlayernorm mkldnnscalarmul mmbatchside mmtreereduce mod mode model models
    modes modf modified modifies modify module modulecontainerindex modules monitor monitored more most move
    moveaxis movedim moving mps mse msort mtia much mul multi multigammaln multilabel multinomial multiple
    multiplication multiply multiprocessing must mutable mutate mutated mutates mutating mutation mutations
    mvlgamma name named names namespace nan nanmean nanmedian nanquantile nansum narrow native nbytes ncf ndim
    ndimension ndtr ndtri nearest nearest1d nearest2d nearest3d necessary need needed needs neg negative neither
    nelement nested nesting network never new newaxis newly next nextafter nll nnpack nnz node nodes noise non
    none nonzero nor norm norm1d norm2d norm3d normal normalization normalize normalized not note notes nothing
    now nowait nuclear num number numbers numel numerical numpy numtotensor obj object objects obs occur occurred
    occurs oct off offset offsets often old once one onednnfusiongroup onednnfusionguard ones ongoing only onto
    opaque open openmp operand operands operation operations operator operators ops optim optimal optimization
    optimizations optimize optimized option optional optionally options ord order ordered ordering orgqr origin
    original ormqr other otherwise our out outer output outputs outside over overhead overlap overlapping overload
    overridden override overrideable overrides own owner p2p pack package packed pad pad1d pad2d pad3d padded
    padding pair pairs pairwise paper parallel param parameter parameters params parent parse part partial
    particular partition partitioned partitions parts pass passed passes passing path paths pattern patterns pca
    pdist per percentformat perform performance performed performing performs permute permuted persistent philox
    physical pickle pin pinned pinv pinverse pipeline pixel place placeholder placeholders plain plan platform
    please plus point pointer points pointwise poisson polar polygamma polynomial pool pool1d pool2d pool3d pop
    popitem populated pos position positional positions positive possible possibly post potential potentially pow
    power powsum pre precision prefix preload prelu prepack prepacked prepare present preserve preserved preserves
    preserving prevent previous previously primal prims print printoptions prior priority problem process
    processed processes processing prod produce produced produces producing product profile profiler profiling
    program projection promote propagate propagation proper properly properties property provide provided provides
    providing proxy prune psi ptr purposes put python pythonop pytorch pytree qadd qbatch qconv qconv1d qconv2d
    qconv3d qint32 qint8 qkv qlinear qmul qparams qscheme qualified quant quantile quantization quantize quantized
    quasirandom query quint2x4 quint4x2 quint8 qweight r2c rad2deg radd radians ragged raise raised raiseexception
    raises rand randint randn random randperm range rangelist ranges rank ranking ranks rather ravel raw rdiv read
    reads real reapply reason reasons received reciprocal recommended reconstruct record recorded records
    recursive recursively recv reduce reduced reduction reductionsizes ref refer reference referenced references
    reflection refs region regions register registered registers registration registrations regular reinforce
    reinit reinterpret related relative release relevant relu relu6 rely remain remainder remaining remote removal
    remove removed removes removing renorm reorder reordering repeat replace replaced replacement replaces
    replacing replay replication report repr represent representation represented representing represents
    reproducibility requested require required requires requiresgradcheck rescale reset reshape resize resized
    resolve resolved respect respectively response responsible restore result resulting results retain retains
    retrieve return returned returning returns reuse rev reverse reversed rewrite rfft rfft2 rfftfreq rfftn rfind
    rfloordiv right rindex rjust rlshift rmatmul rmod rms rmul rng rnn roll root ror rot90 round row rowwise
    rpartition rpc rpow rrelu rrshift rshift rsplit rsqrt rstrip rsub rtruediv rule rules run running runs runtime
    rxor saddmm safe safely safety same sample sampled sampler samples satisfy saturate save saved saving scalar
    scalarimplicit scalars scale scaled scales scaling scan scatter schedule scheduler scheduling schema scope
    scramble scripting sdp search searchsorted second seconds see seed seen segment select selecting selection
    self selu semantics semi send separate separated separately seqlen sequence sequences serializable
    serialization serialize serialized set setattr setdefault setitem sets setstate setting settings setup several
    sgd sgn shallow shape shapes share shared shift shifted short should shuffle side sigmoid sign signal
    signature signatures signbit signed silu similar similarity simple simplify simply sin sinc since single
    singleton sinh sink size sized sizeof sizes skip skipped skipping slice slogdet slow small smaller smm smooth
    sobol soft softmax softmin softplus softshrink softsign solve some something sometimes sort sorted source
    sources space sparse spatial spdiags spec special specialized specific specifically specified specifies
    specify specifying spectral spherical split splitlines splits spmm spsolve sqrt square squeeze src sspaddmm
    stable stack standard start starting starts startswith state statement states static statically
    staticruntimecopyouts staticsubgraph statistics stats status std step steps stft still stop storage store
    stored stores storing str strategy stream strict stride strided strides string stringindex strings strip
    strobelight structure structured structures style sub subclass subclasses subclasshook subcmul subgraph
    subgraphs subject submodule submodules subsequent subset subtract successfully such suffix suitable sum
    support supported supporting supports sure svd svdvals swapaxes swapcase swapdims sym symbol symbolic symbols
    symeig symints symmetric sympy sync sys system table take taken takes tan tanh tanhshrink target targets tbc
    template templates temporarily temporary tensor tensordot tensorexprdynamicgroup tensorexprdynamicguard
    tensorexprgroup tensorinv tensors tensorsolve terms test testing tests text textwrap tf32 than that the their
    them then there therefore these they things this thnn those though thread threading threads three threshold
    through throw thus tile time timepoint times title today together token tokens tolist too top topk topological
    torch total trace traceable traceback traced tracer traces tracing track tracked tracker tracking tracks
    training transform transformation transformations transformer transforms transpose transpose1d transpose2d
    transpose3d trapezoid trapz traverse treat treated tree triangular tries trigger tril trilinear trilinear3d
    triple triplet triton triu true truediv trunc try trying tuning tuple tupleindex tuples tupleunpack turn twice
    two type typecheck typed typename types typically uint1 uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64
    uint7 uint8 unable unary unbacked unbind unchanged unchecked undefined under underlying unexpected unflatten
    unfold unhandled uniform unify uninitialized union unique unique2 unknown unless unlike unpack unpacked
    unpickler unpool unpool1d unpool2d unpool3d unravel unrecognized unsafe unscale unshuffle unsqueeze
    unsupported until untyped unused unwrap update updated updates upon upper upsample usage use used useful user
    users uses using usually utilities utility utils val valid validate validation value values vander var
    varconcat variable variables variadic variant various varstack vdot vecdot vector vectorized vendor verify
    version versions very via view views vmap void volatile vsplit vstack vulkan wait walk want warn warning
    warnings was way ways weakref weight weights well were what when where whether which while whole whose why
    width will window windows with within without won words work workaround worker working works would wrap
    wrapped wrapper wrappers wrapping wraps write writes writing written wrong xdoctest xla xlog1py xlogy xor xpu
    yet yield yields you your zero zeros zerotensor zeta zfill
    """.split()
)

MODULE_CLASSES = frozenset(
    """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d
    AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss
    BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU CTCLoss ChannelShuffle CircularPad1d CircularPad2d
    CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d Container Conv1d Conv2d Conv3d ConvTranspose1d
    ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss CrossMapLRN2d
    DataParallel Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold
    FractionalMaxPool2d FractionalMaxPool3d GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid
    Hardswish Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d
    KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell LayerNorm LazyBatchNorm1d LazyBatchNorm2d
    LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
    LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear LeakyReLU Linear LinearCrossEntropyLoss
    LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d
    MaxUnpool2d MaxUnpool3d Mish Module ModuleDict ModuleList MultiLabelMarginLoss MultiLabelSoftMarginLoss
    MultiMarginLoss MultiheadAttention NLLLoss NLLLoss2d PReLU PairwiseDistance ParameterDict ParameterList
    PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNBase RNNCell RNNCellBase RReLU ReLU ReLU6
    ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU
    Sequential SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign
    SyncBatchNorm Tanh Tanhshrink Threshold Transformer TransformerDecoder TransformerDecoderLayer
    TransformerEncoder TransformerEncoderLayer TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold
    Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
    """.split()
)
