/* All kernels for one kind of processor: branches and products with sparse samples in
 * float and double, losses in double.
 *
 * Included once for each kind; the including file sets
 *   PROCESSOR  suffix of the names, may be empty
 *   TARGET     attribute that lets the compiler use the processor's instructions
 *   BYTES      width of a vector register
 *   ROWS(K)    samples scored at a time beside K classes: ROWS * K registers hold sums
 */

#define T float
#define BITS uint32_t
#define NAME(x) JOIN(x, float, PROCESSOR)
#include "_branch.h"
#include "_sparse.h"
#undef T
#undef BITS
#undef NAME
#define T double
#define BITS uint64_t
#define NAME(x) JOIN(x, double, PROCESSOR)
#include "_branch.h"
#include "_sparse.h"
#include "_losses.h"
#undef T
#undef BITS
#undef NAME
#undef PROCESSOR
#undef TARGET
#undef BYTES
#undef ROWS
