// Turns off flush-to-zero in a scope: torch.set_flush_denormal(True), on this thread or
// on the one that started it, must not change the bits of a draw.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace structout::cpu {

class KeepDenormals {
 public:
  KeepDenormals() : saved_(read()) { write(saved_ & ~kFlush); }
  ~KeepDenormals() { write(saved_); }
  KeepDenormals(const KeepDenormals&) = delete;

 private:
#if defined(__x86_64__)
  using Register = unsigned;                  // MXCSR
  static constexpr Register kFlush = 0x8040;  // FTZ (results) and DAZ (operands)
  static Register read() { return _mm_getcsr(); }
  static void write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;                         // FPCR
  static constexpr Register kFlush = 1u << 24 | 1u;  // FZ (both) and FIZ (operands)
  static Register read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(Register value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
#else  // torch.set_flush_denormal does nothing on other processors
  using Register = int;
  static constexpr Register kFlush = 0;
  static Register read() { return 0; }
  static void write(Register) {}
#endif
  const Register saved_;
};

}  // namespace structout::cpu
