// The instructions of a warp that attention is made of, since sm_80: GEMMs, loads of their operands, copies
// that run beside the work. Nothing else of attention is written in assembly.

// Where a pointer into shared memory points, as instructions take it.
__device__ inline u32 shared_address(const void* at) {
    u32 address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(address) : "l"(at));
    return address;
}

// c += a·b for 16 x 16 times 16 x 8 in bf16. With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, 2t..), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..)    two neighbours of a row each, the lower half first
//   b: (2t.., g), (2t + 8.., g)                                      two neighbours of a column each
//   c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// so that two results side by side, rounded, are an `a`.
__device__ inline void multiply_add(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8: lanes 8i..8i+7 name the rows of matrix i, 16 bytes each. A lane gets (g, 2t..) of each.
__device__ inline void load_matrices(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row));
}

// The same with each matrix turned: a lane gets (2t.., g).
__device__ inline void load_turned(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row));
}

// Begins to copy 16 bytes to shared memory; zeros, and nothing is read, where it is not `there`.
__device__ inline void copy_16(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ inline void copy_4(u32 to, const void* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// Waits for the copies this thread began. Others see them after the next barrier.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Two numbers in one word, `low` in the lower half.
__device__ inline u32 pack(f32 low, f32 high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// 2 to the power of x, good to two units in the last place of f32; 0 for -infinity.
__device__ inline f32 power_of_two(f32 x) {
    f32 power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
