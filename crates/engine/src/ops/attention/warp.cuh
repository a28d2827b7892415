// Warp-level PTX instructions of flash attention, for sm_80 and newer: mma.sync, ldmatrix, cp.async and ex2. No other
// file of attention contains assembly.

// The 32-bit shared-memory address that PTX instructions take.
__device__ inline u32 shared_address(const void* at) {
    u32 address;
    asm("{ .reg .u64 generic; cvta.to.shared.u64 generic, %1; cvt.u32.u64 %0, generic; }" : "=r"(address) : "l"(at));
    return address;
}

// c += a·b for 16 x 16 times 16 x 8 in bf16. With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, 2t..), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..)    two adjacent elements of a row each, low half first
//   b: (2t.., g), (2t + 8.., g)                                      two adjacent elements of a column each
//   c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// so two adjacent accumulators, rounded to bf16, form an `a` fragment.
__device__ inline void mma_m16n8k16(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices: lanes 8i..8i+7 give the row addresses of matrix i, 16 bytes each. A lane gets (g, 2t..) of
// each.
__device__ inline void ldmatrix_x4(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row));
}

// The same with each matrix transposed: a lane gets (2t.., g).
__device__ inline void ldmatrix_x4_trans(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row));
}

// Starts an asynchronous copy of 16 bytes to shared memory. Out of bounds it writes zeros and reads nothing.
__device__ inline void cp_async_16(u32 to, const void* from, bool in_bounds) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(in_bounds ? 16 : 0)
                 : "memory");
}

__device__ inline void cp_async_4(u32 to, const void* from, bool in_bounds) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(in_bounds ? 4 : 0)
                 : "memory");
}

// Waits for the copies of this thread. Other threads see them after the next barrier.
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// 2^x within two units in the last place of f32; 0 for -infinity.
__device__ inline f32 exp2_approx(f32 x) {
    f32 power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
