// The window of a convolution over the frames of a row, as in window.rs.

struct ConvWindow {
    u32 kernel, stride, dilation, padding;

    // The number of output frames of `length` input frames.
    __device__ u32 output_length(u32 length) const {
        u32 span = dilation * (kernel - 1) + 1, padded = length + 2 * padding;
        return length == 0 || padded < span ? 0 : (padded - span) / stride + 1;
    }

    // The input frame that a tap of output frame t reads. In the padding before the first frame it wraps around to a huge
    // number, past any length.
    __device__ u32 input_frame(u32 t, u32 tap) const { return t * stride + tap * dilation - padding; }

    // The output frame that reads `frame` with a tap; 0xffffffff if there is none.
    __device__ u32 output_frame(u32 frame, u32 tap) const {
        u32 at = frame + padding, offset = tap * dilation;
        if (at < offset) return 0xffffffffu;
        u32 shifted = at - offset;
        if (stride == 1) return shifted;
        u32 t = shifted / stride;
        return t * stride == shifted ? t : 0xffffffffu;
    }
};
