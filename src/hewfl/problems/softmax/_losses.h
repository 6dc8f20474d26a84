/* Losses of softmax regression from scores, for one kind of processor; T is double.
 *
 * Included after _branch.h, whose exponential it takes. CHUNK samples of one
 * model at a time, so that their scores are read from the nearest cache. Scores of float
 * are widened as they are read.
 */

/* log x for x >= 1: x = 2^k m, log m = 2 artanh((m - 1)/(m + 1)) by its series.
 *
 * With sqrt(1/2) <= m < sqrt(2) the series needs eleven terms, and k = 0 near x = 1: the
 * logarithm of a sum of exponentials close to 1 keeps its digits. No branches or calls,
 * so that the loop over samples becomes vector code.
 */
static inline __attribute__((always_inline)) TARGET double NAME(logarithm)(double x)
{
    const uint64_t least = 0x3fe6a09e667f3bcd; /* the bits of sqrt(1/2) */
    uint64_t bits, whole;
    memcpy(&bits, &x, sizeof x);
    whole = (bits - least) >> 52;
    bits -= whole << 52;
    whole |= 0x4330000000000000; /* 2^52 + k, without a conversion of integers */
    double m, k;
    memcpy(&m, &bits, sizeof m);
    memcpy(&k, &whole, sizeof k);
    k -= 0x1p52;
    double s = (m - 1) / (m + 1), z = s * s;
    double series = 1 / 3.0 + z * (1 / 5.0 + z * (1 / 7.0 + z * (1 / 9.0 + z * (1 / 11.0 +
                    z * (1 / 13.0 + z * (1 / 15.0 + z * (1 / 17.0 + z * (1 / 19.0 +
                    z * (1 / 21.0 + z * (1 / 23.0))))))))));
    /* ln 2 in two parts, small terms first: k * ln 2 rounded at once costs an ulp of it */
    double result = k * 0x1.62e42fefap-1 + (2 * s + (2 * s * z * series + k * 0x1.cf79abc9e3b39p-40));
    return result + (x - x); /* NaN stays NaN */
}

/* entry i of the scores */
static inline __attribute__((always_inline)) TARGET double NAME(score_at)(
    const void *S, Py_ssize_t i, const int narrow)
{
    return narrow ? (double)((const float *)S)[i] : ((const double *)S)[i];
}

/* out[model][sample] = log sum_k exp S[model][k][sample] - S[model][label][sample], and
 * hits, unless NULL: whether the label is the first of the largest scores
 */
static inline __attribute__((always_inline)) TARGET void NAME(measure)(
    const void *S, const int64_t *labels, double *out, uint8_t *hits, Py_ssize_t models,
    Py_ssize_t c, Py_ssize_t b, const int narrow)
{
    double top[CHUNK], total[CHUNK];
    for (Py_ssize_t model = 0; model < models; model++)
        for (Py_ssize_t from = 0; from < b; from += CHUNK) {
            const Py_ssize_t first = model * c * b + from;
            Py_ssize_t count = b - from < CHUNK ? b - from : CHUNK;
            double *losses = out + model * b + from;
            for (Py_ssize_t j = 0; j < count; j++) {
                top[j] = NAME(score_at)(S, first + j, narrow);
                total[j] = 0;
            }
            for (Py_ssize_t k = 1; k < c; k++)
                for (Py_ssize_t j = 0; j < count; j++) {
                    double s = NAME(score_at)(S, first + k * b + j, narrow);
                    top[j] = s > top[j] ? s : top[j];
                }
            for (Py_ssize_t k = 0; k < c; k++)
                for (Py_ssize_t j = 0; j < count; j++) {
                    double s = NAME(score_at)(S, first + k * b + j, narrow);
                    total[j] += NAME(exponential)(s - top[j]);
                }
            for (Py_ssize_t j = 0; j < count; j++)
                losses[j] = NAME(logarithm)(total[j]);
            for (Py_ssize_t j = 0; j < count; j++) {
                Py_ssize_t own = first + labels[from + j] * b + j;
                losses[j] += top[j] - NAME(score_at)(S, own, narrow);
            }
            if (!hits)
                continue;
            /* The first of the largest scores, as a least place: kept beside the largest
             * score it would need a branch for each, and these took half the time. */
            for (Py_ssize_t j = 0; j < count; j++)
                total[j] = (double)c;
            for (Py_ssize_t k = 0; k < c; k++)
                for (Py_ssize_t j = 0; j < count; j++) {
                    double s = NAME(score_at)(S, first + k * b + j, narrow);
                    double place = s == top[j] ? (double)k : (double)c;
                    total[j] = place < total[j] ? place : total[j];
                }
            for (Py_ssize_t j = 0; j < count; j++)
                hits[model * b + from + j] = total[j] == (double)labels[from + j];
        }
}

static TARGET void NAME(losses)(const void *S, const int64_t *labels, double *out,
                                uint8_t *hits, Py_ssize_t models, Py_ssize_t c,
                                Py_ssize_t b, int narrow)
{
    if (narrow)
        NAME(measure)(S, labels, out, hits, models, c, b, 1);
    else
        NAME(measure)(S, labels, out, hits, models, c, b, 0);
}
