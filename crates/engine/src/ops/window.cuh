// A window that slides over the frames of a row, as window.rs has it.

struct Window {
    u32 kernel, stride, dilation, padding;

    // Frames that become of `length`.
    __device__ u32 output_length(u32 length) const {
        u32 reach = dilation * (kernel - 1) + 1, room = length + 2 * padding;
        return length == 0 || room < reach ? 0 : (room - reach) / stride + 1;
    }

    // The input frame that a tap of output frame t reads: past any length where that is before the first one.
    __device__ u32 read(u32 t, u32 tap) const { return t * stride + tap * dilation - padding; }

    // The output frame that reads `frame` with a tap: past any length where there is none.
    __device__ u32 reader(u32 frame, u32 tap) const {
        u32 at = frame + padding, back = tap * dilation;
        if (at < back) return 0xffffffffu;
        u32 shifted = at - back;
        if (stride == 1) return shifted;
        u32 t = shifted / stride;
        return t * stride == shifted ? t : 0xffffffffu;
    }
};
