/* One attempt in a process of its own, and its result as a line.
 *
 * TRY(name, expression) forks, evaluates the expression (a system call's raw answer: negative is -errno) in the child, and
 * prints `name: ok`, `name: EPERM`, `name: SIGSYS`, `name: exits`, or `name: does not return`. What an answer means is not
 * judged here, and no number that differs from run to run is printed. */
#ifndef __x86_64__
#error "the measured tables are those of x86_64"
#endif
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define HIGH (1L << 32)

/* No function call: a child that shares the stack (vfork) returns here too. Compiled with -mno-red-zone for it. */
static inline __attribute__((always_inline)) long raw(long nr, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
}
#define CALL6(nr, a, b, c, d, e, f, ...) raw(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define SYS(nr, ...) CALL6(nr, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)

/* Shared with the child: what it got. */
static volatile struct { int done; long answer; } *seen;
static pid_t child;

static void nothing(int number) { (void)number; }

static int begin(void) {
    seen->done = 0;
    child = fork();
    if (child < 0) {
        printf("the probe itself cannot fork: %s\n", strerrorname_np(errno));
        exit(1);
    }
    if (child != 0) return 0;
    /* What waits for ever is interrupted, again and again: EINTR. */
    struct sigaction interrupt = {.sa_handler = nothing};
    sigaction(SIGALRM, &interrupt, NULL);
    struct itimerval often = {{0, 50000}, {0, 50000}};
    setitimer(ITIMER_REAL, &often, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    return 1;
}

static inline __attribute__((always_inline)) void finish(long answer) {
    seen->answer = answer;
    seen->done = 1;
    /* What was cloned comes through here too, has no children, and is waited for: it would count against the limit. */
    while (raw(61, -1, 0, 0x40000000 /* __WALL */, 0, 0, 0) != -ECHILD) {}
    for (;;) raw(231, 0, 0, 0, 0, 0, 0);
}

/* The child's end as a word. */
static const char *outcome(void) {
    static char text[64];
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    struct timespec patience = {60, 0};
    int status, late = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (late) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return "does not return";
        }
        late = sigtimedwait(&chld, NULL, &patience) < 0 && errno == EAGAIN;
    }
    /* One cloned with CLONE_PARENT is ours. */
    while (waitpid(-1, NULL, __WALL) > 0) {}
    if (WIFSIGNALED(status)) {
        snprintf(text, sizeof text, "SIG%s%s", sigabbrev_np(WTERMSIG(status)), WCOREDUMP(status) ? ", core dumped" : "");
        return text;
    }
    if (!seen->done) return "exits";
    if (seen->answer >= 0 || seen->answer < -4095) return "ok";
    const char *name = strerrorname_np((int)-seen->answer);
    snprintf(text, sizeof text, "%s", name ? name : "an unknown error");
    return text;
}

#define OUTCOME(...) (begin() ? (finish(({ __VA_ARGS__; })), "") : outcome())
#define TRY(name, ...) printf("%s: %s\n", name, OUTCOME(__VA_ARGS__))

/* A name made of parts, good until the next. */
static const char *named(const char *format, ...) {
    static char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

/* Lines of equal results as one: `name FIRST-LAST: result`. */
static struct { char name[64], result[64]; int first, last; } run;

static void flush_range(void) {
    if (!run.result[0]) return;
    if (run.first == run.last) printf("%s %d: %s\n", run.name, run.first, run.result);
    else printf("%s %d-%d: %s\n", run.name, run.first, run.last, run.result);
    run.result[0] = 0;
}

static void range(const char *name, int number, const char *result) {
    if (run.result[0] && (strcmp(run.result, result) || strcmp(run.name, name) || run.last + 1 != number)) flush_range();
    if (!run.result[0]) {
        snprintf(run.name, sizeof run.name, "%s", name);
        snprintf(run.result, sizeof run.result, "%s", result);
        run.first = number;
    }
    run.last = number;
}

static void prepare(void) {
    static char buffer[1 << 20];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    if (seen == MAP_FAILED || sigprocmask(SIG_BLOCK, &chld, NULL)) exit(1);
    if (chdir("/tmp")) exit(1);
    umask(0);
}
