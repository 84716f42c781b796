r"""Prints kernels of rows whose first input is a contraction $x_{qcd} = \sum_j w_{qj}\,l_{jc}\,r_{jd}$ as C.

For each $c$ in turn, $x$ is a product of two matrices that stay in the cache, and each of its rows is used immediately.
The pullback makes the product again, then the derivatives by its rows, and from these two more products.
"""

from momentprop.codegen.c_language import TYPES
from momentprop.codegen.formula import Formula, Unprintable
from momentprop.codegen.printed_rows import Row, given_row, made_row, width

PRODUCT = """\
#ifdef __AVX512F__
#define WIDE 64
#elif defined(__AVX__)
#define WIDE 32
#else
#define WIDE 16
#endif
#define UP(n) (((n) + LANES - 1) / LANES * LANES)
#define LANES ((int64_t)(WIDE / sizeof(KIND)))
typedef KIND vector __attribute__((vector_size(WIDE), aligned(__alignof__(KIND)), may_alias));
/* y[i][v] (+)= sum over s of a[i * row + s * step] * b[s][v], for m rows and n vectors */
static inline __attribute__((always_inline)) void block(const int m, const int n, int64_t sums, const KIND *a,
        int64_t row, int64_t step, const KIND *b, int64_t wide, KIND *y, int64_t next, const int added) {
    vector t[8][2];
    #pragma GCC unroll 8
    for (int i = 0; i < m; i++)
        #pragma GCC unroll 2
        for (int v = 0; v < n; v++)
            t[i][v] = added ? *(const vector *)(y + i * next + v * LANES) : (vector){0};
    for (int64_t s = 0; s < sums; s++)
        #pragma GCC unroll 8
        for (int i = 0; i < m; i++)
            #pragma GCC unroll 2
            for (int v = 0; v < n; v++)
                t[i][v] += a[i * row + s * step] * *(const vector *)(b + s * wide + v * LANES);
    #pragma GCC unroll 8
    for (int i = 0; i < m; i++)
        #pragma GCC unroll 2
        for (int v = 0; v < n; v++)
            *(vector *)(y + i * next + v * LANES) = t[i][v];
}
static inline __attribute__((always_inline)) void product(int64_t m, int64_t sums, const KIND *a, int64_t row,
        int64_t step, const KIND *b, int64_t wide, KIND *y, const int added) {
    for (int64_t v = 0; v < wide; v += 2 * LANES) {
        int64_t i = 0;
        if (v + LANES < wide) {
            for (; i + 8 <= m; i += 8)
                block(8, 2, sums, a + i * row, row, step, b + v, wide, y + i * wide + v, wide, added);
            for (; i < m; i++) block(1, 2, sums, a + i * row, row, step, b + v, wide, y + i * wide + v, wide, added);
        } else {
            for (; i + 8 <= m; i += 8)
                block(8, 1, sums, a + i * row, row, step, b + v, wide, y + i * wide + v, wide, added);
            for (; i < m; i++) block(1, 1, sums, a + i * row, row, step, b + v, wide, y + i * wide + v, wide, added);
        }
    }
}
"""
"""The product of two matrices, whose rows are whole vectors of the type `KIND`."""

_LARGEST = 16  # numbers in the largest vector

_FORWARD = """\
    const int64_t wide = UP({row});
    {kind} *p = scratch + size * omp_get_thread_num(), *x = p + J * wide; /* pairs and contraction of one c */
    #pragma omp for schedule(static)
    for (int64_t unit = 0; unit < n * C; unit++) {{
        const int64_t lane = unit / C, c = unit % C;
        const {kind} *w = w0 + lane * Q * J, *l = l0 + lane * J * C, *r = r0 + lane * J * {row};
        for (int64_t j = 0; j < J; j++)
            for (int d = 0; d < {row}; d++) p[j * wide + d] = l[j * C + c] * r[j * {row} + d];
        product(Q, J, w, J, 1, p, wide, x, 0);
        for (int64_t q = 0; q < Q; q++) {{
            const int64_t row = (lane * Q + q) * C + c;
            {body}
        }}
    }}
"""

_PULLBACK = """\
    const int64_t wide = UP({row}), high = UP(J);
    {kind} *p = scratch + size * omp_get_thread_num(), *gp = p + J * wide; /* the pairs of one c, and their gradients */
    {kind} *x = gp + J * wide, *gx = x + Q * wide; /* the contraction of one c, and its gradients */
    {kind} *gw = gx + Q * wide, *rt = gw + Q * high, *pt = rt + {row} * high, *lc = pt + {row} * high; /* t: turned */
    #pragma omp for schedule(static)
    for (int64_t lane = 0; lane < n; lane++) {{
        const {kind} *w = w0 + lane * Q * J, *l = l0 + lane * J * C, *r = r0 + lane * J * {row};
        {kind} *gl = g1 + lane * J * C, *gr = g2 + lane * J * {row};
        for (int64_t j = 0; j < J; j++)
            for (int d = 0; d < {row}; d++) rt[d * high + j] = r[j * {row} + d];
        for (int64_t c = 0; c < C; c++) {{
            for (int64_t j = 0; j < J; j++) {{
                lc[j] = l[j * C + c];
                for (int d = 0; d < {row}; d++) p[j * wide + d] = lc[j] * r[j * {row} + d];
            }}
            for (int d = 0; d < {row}; d++)
                for (int64_t j = 0; j < J; j++) pt[d * high + j] = lc[j] * rt[d * high + j];
            product(Q, J, w, J, 1, p, wide, x, 0);
            for (int64_t q = 0; q < Q; q++) {{
                const int64_t row = (lane * Q + q) * C + c;
                {body}
            }}
            product(Q, {row}, gx, wide, 1, pt, high, gw, c > 0);
            product(J, Q, w, 1, J, gx, wide, gp, 0);
            for (int64_t j = 0; j < J; j++) {{
                {kind} sum = 0;
                #pragma omp simd reduction(+:sum)
                for (int d = 0; d < {row}; d++) {{
                    sum += gp[j * wide + d] * r[j * {row} + d];
                    gr[j * {row} + d] += gp[j * wide + d] * lc[j];
                }}
                gl[j * C + c] = sum;
            }}
        }}
        for (int64_t q = 0; q < Q; q++)
            for (int64_t j = 0; j < J; j++) g0[(lane * Q + q) * J + j] = gw[q * high + j];
    }}
"""


def room_of_thread(queries: int, keys: int, row: int, back: bool) -> int:
    """Return how many numbers one thread's matrices take."""
    wide, length = (-(-n // _LARGEST) * _LARGEST for n in (row, keys))
    return (keys + queries) * wide + back * ((keys + queries) * wide + (2 * row + queries + 1) * length)


def contraction_in_c(name: str, formula: Formula) -> str:
    """Return a C function of a contraction, or its pullback.

    The parameters are the addresses of the factors, of the other inputs, in the pullback also of the gradients by the
    factors, and of the outputs. Then come the numbers of pairs of matrices, queries, keys and features, the threads'
    memory and its size for each, the number of threads, and how many rows share one row of each other input.
    """
    back, kind = formula.contraction == "pullback", TYPES[formula.dtype]
    others, outputs = range(1, len(formula.inputs)), range(int(back), len(formula.outputs))
    given = [f"const {kind} *{factor}0" for factor in "wlr"]
    given += [f"const {kind} *restrict x{i}" for i in others]
    given += [f"{kind} *g{i}" for i in range(3) if back]
    given += [f"{kind} *restrict y{k}" for k in outputs]
    given += ["int64_t n", "int64_t Q", "int64_t J", "int64_t C", f"{kind} *scratch", "int64_t size", "int threads"]
    given += [f"int64_t e{i}" for i in others]
    text = (_PULLBACK if back else _FORWARD).format(kind=kind, row=formula.row, body=_body(formula, back))
    return (
        f"void {name}({', '.join(given)}) {{\n    #pragma omp parallel num_threads(threads) if(threads > 1)\n    {{\n"
        f"    FLUSHED\n{text}    AS_BEFORE\n    }}\n}}\n"
    )


def _body(formula: Formula, back: bool) -> str:
    """Return the code for a row; rows that share an input add up their gradients by it."""
    lines = [given_row(formula, 0, "x + q * wide")]
    lines += [given_row(formula, i, f"x{i} + row / e{i} * {width(formula, i)}") for i in range(1, len(formula.inputs))]
    for k, number in enumerate(formula.outputs):
        if back:
            at = f"y{k} + row / e{k} * {width(formula, number)}" if k else "gx + q * wide"
        else:
            at = f"y{k} + row * {width(formula, number)}"
        lines.append(made_row(formula, k, at))
    row = Row(formula)
    if row.room > 0:
        raise Unprintable("the rows are too long")
    lines += row.in_c(*("=", "+=") if back else ("=",))
    return "\n            ".join(lines)
