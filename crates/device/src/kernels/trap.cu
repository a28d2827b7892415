// An injected fault. It destroys the context: every later call on the card returns an error.
extern "C" __global__ void injected_trap() {
    asm volatile("trap;");
}
