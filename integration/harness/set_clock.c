/* Preloaded into a server, so that a test can set its clock: `set_clock.py` compiles and drives it.
   Every reading of the wall clock is off by the ms in the file that EVENTBUS_TEST_CLOCK names, which is
   mapped, so that the next reading after a change has it. What measures lengths of time is left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("EVENTBUS_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0)
        abort();
    offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (offset == MAP_FAILED)
        abort();
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    long answer = syscall(SYS_clock_gettime, clock, now);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && offset) {
        int64_t ms = *offset;
        now->tv_sec += ms / 1000;
        now->tv_nsec += ms % 1000 * 1000000;
        if (now->tv_nsec < 0 || now->tv_nsec >= 1000000000) {
            int carry = now->tv_nsec < 0 ? -1 : 1;
            now->tv_sec += carry;
            now->tv_nsec -= carry * 1000000000L;
        }
    }
    return (int)answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (at)
        *at = exact.tv_sec;
    return exact.tv_sec;
}
