// The number of valid frames of each row after a convolution.

extern "C" __global__ void __launch_bounds__(256)
    output_lengths(const i32* lengths, i32* out, u32 kernel, u32 stride, u32 dilation, u32 padding, u32 count) {
    u64 i = thread_index();
    if (i < count) out[i] = (i32)ConvWindow{kernel, stride, dilation, padding}.output_length((u32)max_of(lengths[i], 0));
}
