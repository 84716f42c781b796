"""The language C: its constants and functions, and the statements of the steps of a formula."""

import math
from collections.abc import Sequence

import torch

from momentprop.codegen.expressions import Language, expression
from momentprop.codegen.formula import Formula, Step

HEADER = """\
#include <math.h>
#include <stdint.h>
#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ >= 35 && !defined(__clang__)
#define VECTOR __attribute__((simd("notinbranch")))
VECTOR float exp2f(float); VECTOR float sinf(float); VECTOR float cosf(float); VECTOR float tanhf(float);
VECTOR float erff(float); VECTOR float atanf(float); VECTOR float powf(float, float); VECTOR double pow(double, double);
VECTOR double exp(double); VECTOR double exp2(double); VECTOR double log(double); VECTOR double log1p(double);
VECTOR double expm1(double); VECTOR double sin(double); VECTOR double cos(double); VECTOR double tanh(double);
VECTOR double erf(double); VECTOR double erfc(double); VECTOR double atan(double);
#endif
extern int omp_get_thread_num(void);
#ifdef __SSE2__
#include <xmmintrin.h>
#define FLUSHED unsigned mode = _mm_getcsr(); _mm_setcsr(mode | 0x8040);
#define AS_BEFORE _mm_setcsr(mode);
#else
#define FLUSHED
#define AS_BEFORE
#endif
"""
"""The start of every printed source: the library functions that have vector versions.

Inside `FLUSHED`, numbers below the normal range become zero: the tails of normal densities are full of them, and x86
computes with each a hundred times slower, even in the convolution that reads them.
"""

FAST = """\
#define INLINE static inline __attribute__((always_inline))
INLINE int64_t row_of(int64_t row, int64_t each, int64_t period) {
    row = each == 1 ? row : row / each;
    return period == 0 ? row : row % period;
}
typedef union { float f; int32_t i; } bits;
INLINE float power_of_2(int32_t n) { bits x = { .i = (n + 127) << 23 }; return x.f; }
INLINE float exp_rest(float r) { /* (exp(r) - 1 - r) / r^2 */
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    return (((p * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r + 5.0000001201e-1f;
}
INLINE float exp_float(float x) {
    x = x > 89.0f ? 89.0f : x < -104.5f ? -104.5f : x;
    float n = rintf(x * 1.44269504f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
    int32_t whole = (int32_t)n, half = whole >> 1;
    return (exp_rest(r) * r * r + r + 1.0f) * power_of_2(half) * power_of_2(whole - half);
}
INLINE float expm1_float(float x) {
    x = x > 89.0f ? 89.0f : x < -18.0f ? -18.0f : x;
    float n = rintf(x * 1.44269504f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
    int32_t whole = (int32_t)n, half = whole >> 1;
    float below = power_of_2(half), above = power_of_2(whole - half);
    return ((exp_rest(r) * r * r + r) * above + (above - power_of_2(-half))) * below;
}
INLINE float log_float(float x) {
    bits y = { .f = x < 1.17549435e-38f ? x * 8388608.0f : x };
    int32_t e = (y.i - 0x3f3504f3) >> 23; /* the mantissa is in [sqrt(1/2), sqrt(2)) */
    y.i -= e << 23;
    float n = (float)e - (x < 1.17549435e-38f ? 23.0f : 0.0f), m = y.f - 1.0f, z = m * m;
    float p = 7.0376836292e-2f * m - 1.1514610310e-1f;
    p = ((p * m + 1.1676998740e-1f) * m - 1.2420140846e-1f) * m + 1.4249322787e-1f;
    p = ((((p * m - 1.6668057665e-1f) * m + 2.0000714765e-1f) * m - 2.4999993993e-1f) * m + 3.3333331174e-1f) * m * z;
    float found = m + (p - n * 2.12194440e-4f - 0.5f * z) + n * 0.693359375f;
    found = x == 0.0f ? -INFINITY : x < 0.0f ? NAN : found;
    return x > 3.40282347e38f || x != x ? x : found;
}
INLINE float log1p_float(float x) {
    float u = 1.0f + x, step = u - 1.0f, found = log_float(u);
    return step == 0.0f || u > 1e30f || u <= 0.0f ? (step == 0.0f ? x : found) : found * (x / step);
}
INLINE float erfc_float(float x) { /* by the quotient of polynomials of kernels/tails.py */
    float z = x < 0.0f ? -x : x;
    z = z > 11.0f ? 11.0f : z;
    float t = z * 1.41421356f;
    float p = (((0.00440390086f * t + 0.0469223678f) * t + 0.255778972f) * t + 0.79141361f) * t + 1.25331415f;
    float q = (((0.00220194457f * t + 0.0234618278f) * t + 0.14107238f) * t + 0.537164418f) * t + 1.36410886f;
    q = ((q * t + 2.25820618f) * t + 2.22722696f) * t + 1.0f;
    float h2 = p / q, mills = h2 + t * ((1.0f - t * h2) / (1.0f + t * t)), square = z * z;
    float bell = exp_float(-square);
    bell -= bell * fmaf(z, z, -square);
    float found = 0.797884561f * bell * mills;
    return x < 0.0f ? 2.0f - found : found;
}
"""
"""Functions in single precision. The library's own leave vector instructions where a result underflows."""

_INLINE = frozenset(("exp", "expm1", "log", "log1p", "erfc"))
TYPES = {torch.float32: "float", torch.float64: "double", torch.bool: "int"}


class C(Language):
    """The language C."""

    def number(self, value: float, dtype: torch.dtype) -> str:
        """Return a constant."""
        if dtype is torch.bool:
            return str(int(value))
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "(-INFINITY)" if value < 0 else "INFINITY"
        single = dtype is torch.float32
        rounded = torch.tensor(value, dtype=dtype).item()
        if math.isinf(rounded):
            return "(-INFINITY)" if value < 0 else "INFINITY"
        return f"({float(rounded).hex()}{'f' if single else ''})"

    def choice(self, condition: str, one: str, other: str) -> str:
        """Return one of two expressions."""
        return f"({condition} ? {one} : {other})"

    def call(self, function: str, x: str, dtype: torch.dtype) -> str:
        """Return a function of the mathematical library."""
        suffix = "f" if dtype is torch.float32 else ""
        if suffix and function in _INLINE:
            return f"{function}_float({x})"
        if function == "rsqrt":
            return f"({self.number(1.0, dtype)} / sqrt{suffix}({x}))"
        return f"{'fabs' if function == 'abs' else function}{suffix}({x})"

    def power(self, x: str, exponent: str, dtype: torch.dtype) -> str:
        """Return any power."""
        return f"pow{'f' if dtype is torch.float32 else ''}({x}, {exponent})"

    def converted(self, x: str, source: torch.dtype, dtype: torch.dtype) -> str:
        """Return an expression in another type."""
        if source is dtype:
            return x
        return f"({x} != 0)" if dtype is torch.bool else f"(({TYPES[dtype]}){x})"

    def negated(self, a: str) -> str:
        """Return whether a condition does not hold."""
        return f"(!{a})"

    def index(self, dtype: torch.dtype) -> str:
        """Return the place in the row."""
        return f"({TYPES[dtype]})i"


_C = C()


def output(formula: Formula, names: dict[int, str], number: int) -> str:
    """Return a result in the type of the formula."""
    return _C.converted(names[number], formula.kind(number)[0], formula.dtype)


def term_of(formula: Formula, names: dict[int, str], step: Step) -> str:
    """Return what a reduction takes from each element, in the type of its result."""
    (term,) = step.arguments
    return _C.converted(names[term.number], formula.kind(term.number)[0], step.dtype)


def statements(formula: Formula, names: dict[int, str], places: Sequence[int]) -> list[str]:
    """Return the declarations of some steps' results, and note their names."""
    lines = []
    for place in places:
        step, number = formula.steps[place], len(formula.inputs) + place
        written = expression(_C, formula, step, names)
        if step.op == "constant":
            names[number] = written
            continue
        names[number] = f"t{number}"
        lines.append(f"{TYPES[step.dtype]} t{number} = {written};")
    return lines


def in_parallel(clause: str, loop: str, before: str = "") -> str:
    """Return a loop that all threads share; each first runs its own statement."""
    return (
        "    #pragma omp parallel num_threads(threads) if(threads > 1)\n    {\n    FLUSHED\n"
        f"    {before}\n    #pragma omp for {clause} schedule(static)\n    {loop}\n    AS_BEFORE\n    }}\n"
    )
