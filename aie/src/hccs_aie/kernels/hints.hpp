// Loop hints for the two AI Engine compilers. Under the emulation they only mark loops for the trace.
//
//   HCCS_LOOP(name, i, count, least)   a counted loop worth software-pipelining; it runs at least `least` >= 1 times
//   HCCS_PLAIN_LOOP(name, i, count)    a counted loop without hints; it may run no time at all
//   HCCS_FIXED_LOOP(name, i, count)    the same with a compile-time count, which a compiler may unroll or not
//   HCCS_UNROLL(i, count)              a loop whose count is a compile-time constant, to be unrolled whole
//   HCCS_LOAD(p)                       one scalar read through p
//   HCCS_STORE(p, v)                   one scalar write through p
//   HCCS_SIGNED(v), HCCS_UNSIGNED(v)   v as a 32-bit scalar
//   HCCS_SCALAR                        the type of such a scalar
//   HCCS_LONG_BODIES                   whether iterations take more rows: where a compiler does not pipeline them, they
//                                      fill the gaps in which it waits for loads and products
#pragma once

#if !defined(HCCS_AIE_EMULATION)
#define HCCS_PLAIN_LOOP(name, i, count) for (unsigned i = 0; i < (count); ++i)
#define HCCS_FIXED_LOOP(name, i, count) HCCS_PLAIN_LOOP(name, i, count)
#define HCCS_LOAD(p) (*(p))
#define HCCS_STORE(p, v) (*(p) = (v))
#define HCCS_SIGNED(v) (int32(v))
#define HCCS_UNSIGNED(v) (uint32(v))
#define HCCS_SCALAR int32
#define HCCS_INLINE inline __attribute__((always_inline))
#if defined(__chess__)
#define HCCS_LONG_BODIES false
#define HCCS_LOOP(name, i, count, least) \
  for (unsigned i = 0; i < (count); ++i) chess_prepare_for_pipelining chess_loop_range(least, )
#define HCCS_UNROLL(i, count) \
  for (unsigned i = 0; i < (count); ++i) chess_unroll_loop(*)
#else
#define HCCS_LONG_BODIES true
#define HCCS_PRAGMA(text) _Pragma(#text)
#define HCCS_LOOP(name, i, count, least)                             \
  HCCS_PRAGMA(clang loop min_iteration_count(least) unroll(disable)) \
  for (unsigned i = 0; i < (count); ++i)
#define HCCS_UNROLL(i, count)          \
  HCCS_PRAGMA(clang loop unroll(full)) \
  for (unsigned i = 0; i < (count); ++i)
#endif
#else
#define HCCS_TRACED_LOOP(name, i, count, fixed)                                                \
  for (::aie::emulation::loop name##_loop(#name, unsigned(count), fixed); name##_loop.next();) \
    if ([[maybe_unused]] const unsigned i = name##_loop.index(); true)
#define HCCS_LOOP(name, i, count, least) HCCS_TRACED_LOOP(name, i, count, false)
#define HCCS_PLAIN_LOOP(name, i, count) HCCS_TRACED_LOOP(name, i, count, false)
#define HCCS_FIXED_LOOP(name, i, count) HCCS_TRACED_LOOP(name, i, count, true)
#define HCCS_UNROLL(i, count) for (unsigned i = 0; i < (count); ++i)
#define HCCS_LOAD(p) (::aie::emulation::load_scalar(p))
#define HCCS_STORE(p, v) (::aie::emulation::store_scalar(p, v))
#define HCCS_SIGNED(v) (::aie::emulation::as<int32>(v))
#define HCCS_UNSIGNED(v) (::aie::emulation::as<uint32>(v))
#define HCCS_SCALAR ::aie::emulation::scalar<int>
#define HCCS_INLINE inline
#define HCCS_LONG_BODIES (::aie::emulation::long_bodies)
#endif
