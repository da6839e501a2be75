/* Reading and writing in threads, each in one call: Python's own threads would take the interpreter from one another.
 *
 * Writing copies data into a memory map of a file, in threads that allocate its pages first; mapped.py says why. Only
 * pages that MADV_POPULATE_WRITE gave are touched: where the file system is full it says so, and touching them would end
 * the process (SIGBUS).
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define MOST_THREADS 16
#define EXPORT __attribute__((visibility("default")))

/* Do `task` in as many threads, the caller's among them; all have ended when it returns. */
static void in_threads(void *(*task)(void *), void *argument, uint64_t threads) {
    pthread_t others[MOST_THREADS];
    uint64_t wanted = threads > MOST_THREADS ? MOST_THREADS : threads, started = 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that were there */
    while (started + 1 < wanted && !pthread_create(&others[started], NULL, task, argument)) started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    task(argument);
    for (uint64_t i = 0; i < started; i++) pthread_join(others[i], NULL);
}

typedef struct {
    char *map;             /* begins at a page */
    uint64_t start, end;   /* what is filled of it */
    uint64_t page, piece;  /* piece: a multiple of page */
    uint64_t phase;        /* of the map's begin in pieces of the file */
    const char *const *parts;
    const uint64_t *ends;  /* bytes of the parts up to each one's end, from `start` on */
    uint64_t count;
    _Atomic uint64_t next; /* pieces that somebody has begun with */
    atomic_int refused;
} map_work;

static void copy_range(const map_work *w, uint64_t low, uint64_t high) {
    uint64_t first = 0, last = w->count;
    while (first < last) { /* the part that holds the byte at `low` */
        uint64_t middle = (first + last) / 2;
        if (w->start + w->ends[middle] <= low) first = middle + 1;
        else last = middle;
    }
    for (uint64_t i = first; low < high; i++) {
        uint64_t begin = w->start + (i ? w->ends[i - 1] : 0), end = w->start + w->ends[i];
        uint64_t size = (end < high ? end : high) - low;
        memcpy(w->map + low, w->parts[i] + (low - begin), size);
        low += size;
    }
}

static void *fill_pieces(void *argument) {
    map_work *w = argument;
    while (!atomic_load(&w->refused)) {
        uint64_t number = atomic_fetch_add(&w->next, 1);
        /* Pieces end where pieces of the file do, so that no two threads allocate the same page. */
        uint64_t low = number ? number * w->piece - w->phase : w->start;
        uint64_t high = (number + 1) * w->piece - w->phase;
        if (high > w->end) high = w->end;
        if (low < w->start) low = w->start;
        if (number && number * w->piece - w->phase >= w->end) break;
        if (low >= high) continue;
        uint64_t page = low / w->page * w->page;
        if (madvise(w->map + page, high - page, MADV_POPULATE_WRITE)) {
            atomic_store(&w->refused, 1);
            break;
        }
        copy_range(w, low, high);
        /* The pages stay in the file. Left to the end, one thread would unmap them all. */
        madvise(w->map + page, high - page, MADV_DONTNEED);
    }
    return NULL;
}

/* Fill `map` from byte `start` on with `count` parts, one after the other; `offset` is where in the file the map begins.
 * Returns 0, or 1 if pages were refused: then some of it may have been filled. All threads have ended by then. */
EXPORT int nvckpt_fill_map(char *map, uint64_t offset, uint64_t start, const char *const *parts, const uint64_t *ends,
                           uint64_t count, uint64_t page, uint64_t piece, uint32_t threads) {
    uint64_t size = count ? ends[count - 1] : 0;
    map_work w = {map, start, start + size, page, piece, offset % piece, parts, ends, count, 0, 0};
    uint64_t pieces = size / piece + 1;
    in_threads(fill_pieces, &w, threads < pieces ? threads : pieces);
    return atomic_load(&w.refused);
}

typedef struct {
    int descriptor;
    uint64_t offset, size, step;
    char *target;
    _Atomic uint64_t next, done;
    atomic_int error;
} read_work;

static void *read_steps(void *argument) {
    read_work *w = argument;
    while (!atomic_load(&w->error)) {
        uint64_t low = atomic_fetch_add(&w->next, 1) * w->step;
        if (low >= w->size) break;
        uint64_t high = low + w->step < w->size ? low + w->step : w->size;
        while (low < high) {
            ssize_t got = pread(w->descriptor, w->target + low, high - low, (off_t)(w->offset + low));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) atomic_store(&w->error, errno);
            if (got <= 0) break;
            low += (uint64_t)got;
            atomic_fetch_add(&w->done, (uint64_t)got);
        }
    }
    return NULL;
}

/* Read `size` bytes at `offset`. Returns how many there were, fewer where the file ends, or -errno. */
EXPORT int64_t nvckpt_read_range(int descriptor, uint64_t offset, uint64_t size, char *target, uint64_t step,
                                 uint32_t threads) {
    read_work w = {descriptor, offset, size, step, target, 0, 0, 0};
    uint64_t steps = size / step + 1;
    in_threads(read_steps, &w, threads < steps ? threads : steps);
    return atomic_load(&w.error) ? -(int64_t)atomic_load(&w.error) : (int64_t)atomic_load(&w.done);
}
