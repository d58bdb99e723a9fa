"""
Lists the options of Inductor that a configuration may have.

These options only choose how code is generated; they name no program, no file and no network. A saved diagnosis may
come from anybody, and ``Trial.compile`` applies the saved options. Other options are therefore refused when a diagnosis
is read and when it is made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAY_BE_SET = frozenset(
    "aggressive_fusion allow_buffer_reuse assume_aligned_inputs b2b_gemm_pass batch_fusion benchmark_epilogue_fusion "
    "benchmark_fusion combo_kernels comprehensive_padding constant_and_index_propagation conv_1x1_as_mm "
    "coordinate_descent_check_all_directions coordinate_descent_search_radius coordinate_descent_tuning "
    "cpp.dynamic_threads cpp.enable_concat_linear cpp.enable_grouped_gemm_template cpp.enable_loop_tail_vec "
    "cpp.enable_tiling_heuristics cpp.enable_unsafe_math_opt_flag cpp.fallback_scatter_reduce_sum "
    "cpp.max_horizontal_fusion_size cpp.min_chunk_size cpp.no_redundant_loops cpp.simdlen cpp.threads "
    "cpp.use_decompose_tanh cpp.weight_prepack cpp_wrapper decompose_mem_bound_mm disable_padding_cpu "
    "dynamic_scale_rblock efficient_conv_bn_eval_fx_passes emulate_precision_casts enable_linear_binary_folding "
    "epilogue_fusion epilogue_fusion_first expand_dimension_for_pointwise_nodes fallback_random "
    "force_fuse_int_mm_with_mul force_layout_optimization force_pointwise_cat force_shape_pad freezing "
    "freezing_discard_parameters graph_partition group_fusion inplace_buffers inplace_padding "
    "joint_graph_constant_folding keep_output_stride layout_optimization loop_ordering_after_fusion max_autotune "
    "max_autotune_allow_flexible_layouts max_autotune_conv_backends max_autotune_gemm max_autotune_gemm_backends "
    "max_autotune_gemm_search_space max_autotune_pointwise max_fusion_size max_pointwise_cat_inputs memory_planning "
    "online_softmax optimize_scatter_upon_const_tensor pad_channels_last pad_dynamic_shapes pad_outputs "
    "padding_alignment_bytes padding_stride_threshold pattern_matcher permute_fusion pick_loop_orders prologue_fusion "
    "realize_acc_reads_threshold realize_opcount_threshold realize_reads_threshold reorder_for_compute_comm_overlap "
    "reorder_for_locality reorder_for_peak_memory shape_padding size_asserts split_cat_fx_passes split_reductions "
    "triton.autotune_at_compile_time triton.autotune_pointwise triton.codegen_upcast_to_fp32 "
    "triton.cooperative_reductions triton.cudagraph_skip_dynamic_graphs triton.cudagraph_support_input_mutation "
    "triton.cudagraph_trees triton.cudagraphs triton.dense_indexing triton.divisible_by_16 triton.max_tiles "
    "triton.min_split_scan_rblock triton.multi_kernel triton.persistent_reductions triton.prefer_nd_tiling "
    "triton.slow_path_cudagraph_asserts triton.spill_threshold triton.tiling_prevents_pointwise_fusion "
    "triton.tiling_prevents_reduction_fusion triton.unique_kernel_names triton.use_block_ptr "
    "unroll_reductions_threshold use_mixed_mm".split()
)
_WORDS = re.compile(r"[A-Z]{1,20}(?:,[A-Z]{1,20}){0,9}")
"""The only form that a text may have as the value of an option: ``ATEN,TRITON``."""
EXPECTED = "options of Inductor that only choose how code is generated, such as max_autotune or triton.cudagraphs"


def may_be_set(name: str, value: object) -> bool:
    """Whether an option is in ``MAY_BE_SET``, with a value that such an option can have."""
    is_plain = not isinstance(value, str) or _WORDS.fullmatch(value) is not None
    return name.replace("-", "_") in MAY_BE_SET and is_plain


def refused_option(options: Mapping[str, object]) -> dict[str, object]:
    """Returns the first option that may not be set, with its value; empty if all may be set."""
    return next(({name: value} for name, value in options.items() if not may_be_set(name, value)), {})
