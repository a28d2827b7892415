// Faults on purpose. The context is dead from here on: every later call on the card answers with an error.
extern "C" __global__ void injected_trap() {
    asm volatile("trap;");
}
