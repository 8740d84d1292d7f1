/* Everything that a sandbox may ask of the kernel and that could hold kernel memory, each in a loop: `families SECONDS
 * DIR FAMILY…`. Eight processes, this one among them, do the same until the kernel refuses, and hold what they got until the
 * time is over. `families` alone lists them, with the calls that each is about. Nothing is judged here: what the machine's
 * counters say meanwhile is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 8, PAGE = 4096 };
/* Which process, of the eight; the directory to work in; and a byte of every length that is asked for. */
static int me;
static char room[1 << 20];
static char name[8192];

/* A name of 255 bytes at most that only this process and this step has. */
static const char *own(const char *kind, long i, int length) {
    int n = snprintf(name, sizeof name, "%s%d-%ld-", kind, me, i);
    while (n < length) name[n++] = 'x';
    name[n] = 0;
    return name;
}

static int file(long i) {
    return open(own("f", i, 0), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
}

/* Each answers -1 when the kernel gives no more. `i` counts up from 0. */
/* Two hundred files with few locks each are faster than one with many, which the kernel looks through. */
static int lock_with(long i, int command) {
    enum { FILES = 200 };
    static int fds[FILES];
    if (i < FILES) fds[i] = file(i);
    struct flock lock = {.l_type = i / FILES % 2 ? F_RDLCK : F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * (i / FILES), .l_len = 1};
    return fcntl(fds[i % FILES], command, &lock);
}
static int record_locks(long i) { return lock_with(i, F_SETLK); }
static int descriptor_locks(long i) { return lock_with(i, F_OFD_SETLK); }
/* They stay with the table of files, of which the parent has the same, and name a process that is no more. */
static int locks_of_the_gone(long i) {
    static int fd = -1;
    if (i == 0) fd = file(0);
    long child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
    for (long n = 0; child == 0 && n < 1000; n++) lock.l_start = 2 * (1000 * i + n), fcntl(fd, F_SETLK, &lock);
    if (child == 0) _exit(0);
    return child < 0 || waitpid((pid_t)child, NULL, 0) < 0 ? -1 : 0;
}
static int flocks(long i) {
    int fd = file(i);
    return fd < 0 ? -1 : flock(fd, LOCK_SH);
}
static int leases(long i) {
    int fd = file(i);
    return fd < 0 ? -1 : fcntl(fd, F_SETLEASE, F_WRLCK);
}
static int directory_notes(long i) {
    int fd = mkdir(own("d", i, 0), 0700) ? -1 : open(name, O_RDONLY);
    return fd < 0 ? -1 : fcntl(fd, F_NOTIFY, 0x8000003f);
}
/* Access control lists of the size that still goes through, first as large as the kernel takes. */
static int acl(const char *path, const char *attribute, size_t size) {
    memset(room, 0, 8);
    *(int *)room = 2;
    size_t entries = (size - 4) / 8;
    for (size_t e = 0; e < entries; e++) {
        unsigned short *entry = (unsigned short *)(room + 4 + 8 * e);
        int id = -1;
        entry[0] = e == 0 ? 1 : e == entries - 1 ? 0x20 : e == entries - 2 ? 0x10 : e == entries - 3 ? 4 : 2;
        entry[1] = 7;
        if (entry[0] == 2) id = (int)getuid();
        memcpy(entry + 2, &id, 4);
    }
    return setxattr(path, attribute, room, 4 + 8 * entries, 0);
}
static int acls(long i) {
    if (mkdir(own("d", i, 0), 0700)) return -1;
    for (size_t size = 65536; size > 40; size /= 2)
        if (acl(name, "system.posix_acl_access", size) == 0) return acl(name, "system.posix_acl_default", size);
    return -1;
}
static int attributes(long i) {
    static char attribute[300];
    if (i % 64 == 0) close(file(i / 64));
    else own("f", i / 64, 0);
    int n = snprintf(attribute, sizeof attribute, "user.%ld-", i % 64);
    memset(attribute + n, 'x', 240 - (size_t)n);
    for (size_t size = 65536; size > 0; size /= 2)
        if (setxattr(name, attribute, room, size, 0) == 0) return 0;
    return -1;
}
static int empty_files(long i) { return close(file(i)); }
static int directories(long i) { return mkdir(own("d", i, 250), 0700); }
static int deep_directories(long i) { return mkdir(own("d", i, 250), 0700) || chdir(name) ? -1 : 0; }
static int symlinks(long i) {
    static char target[4096];
    memset(target, 't', sizeof target - 1);
    return symlink(target, own("l", i, 250));
}
static int short_symlinks(long i) {
    static char target[128];
    memset(target, 't', sizeof target - 1);
    return symlink(target, own("l", i, 250));
}
static int hard_links(long i) {
    static char first[] = "first0";
    first[5] = (char)('0' + me);
    if (i == 0) close(open(first, O_CREAT | O_RDWR, 0600));
    return link(first, own("h", i, 250));
}
static int fifos(long i) { return mkfifo(own("p", i, 250), 0600); }
static int unlinked_files(long i) { return file(i) < 0 ? -1 : unlink(name); }
static int temporary_files(long i) { (void)i; return open(".", O_TMPFILE | O_RDWR, 0600); }
static int sparse_files(long i) {
    static int fd = -1;
    if (i == 0) fd = file(0);
    return pwrite(fd, "x", 1, i << 30 & 0x7fffffffffff) == 1 ? 0 : -1;
}
static int holes(long i) {
    int fd = file(i % 128);
    int done = fd < 0 ? -1 : ftruncate(fd, (i + 1) << 12 & 0xfffffff);
    close(fd);
    return done;
}
static int names_that_are_not(long i) {
    struct stat found;
    static char path[512];
    snprintf(path, sizeof path, "/usr/%s", own("n", i, 250));
    return stat(path, &found), 0;
}
static int names_that_are_not_here(long i) {
    struct stat found;
    return stat(own("n", i, 250), &found), 0;
}
static int renames(long i) {
    if (i == 0) close(open(own("r", 0, 250), O_CREAT | O_RDWR, 0600));
    static char old[300];
    strcpy(old, own("r", i, 250));
    return rename(old, own("r", i + 1, 250));
}
static int watches(long i) {
    static int fd = -1;
    if (i == 0) fd = inotify_init1(0);
    close(file(i));
    return inotify_add_watch(fd, name, IN_ALL_EVENTS) < 0 ? -1 : 0;
}
static int watches_of_the_system(long i) {
    static int fd = -1;
    static long last;
    /* One of its own on the same few thousand files, and one instance after another. */
    if (i == 0 || last < 0) fd = inotify_init1(0);
    static FILE *list;
    if (!list) list = popen("find /usr -xdev 2>/dev/null", "r");
    if (!list || !fgets(name, sizeof name, list)) return -1;
    name[strcspn(name, "\n")] = 0;
    last = inotify_add_watch(fd, name, IN_ATTRIB);
    return last < 0 && errno == ENOSPC ? -1 : 0;
}
static int watch_instances(long i) { (void)i; return inotify_init1(0); }
static int unread_events(long i) {
    static int fd = -1;
    if (i == 0) fd = inotify_init1(0), inotify_add_watch(fd, ".", IN_ALL_EVENTS);
    close(file(0));
    return rename(own("f", 0, 0), "other") ? 0 : 0;
}
static int polled(long i) {
    static int set = -1, pipes[2];
    if (i % 200 == 0) set = epoll_create1(0);
    if (i == 0 && pipe(pipes)) return -1;
    struct epoll_event event = {.events = EPOLLIN};
    int fd = dup(pipes[i % 2]);
    return fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) ? -1 : 0;
}
/* Each of a hundred sets watches each of a hundred pipes. */
static int polled_often(long i) {
    static int sets[100], fds[100];
    if (i == 0)
        for (int k = 0; k < 100; k++) sets[k] = epoll_create1(0), fds[k] = eventfd(0, 0);
    struct epoll_event event = {.events = EPOLLIN};
    return i >= 10000 ? -1 : epoll_ctl(sets[i / 100], EPOLL_CTL_ADD, fds[i % 100], &event);
}
static int sets(long i) { (void)i; return epoll_create1(0); }
static int event_counters(long i) { (void)i; return eventfd(0, 0); }
static int descriptor_timers(long i) {
    (void)i;
    struct itimerspec far = {.it_value = {1000, 0}};
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    return fd < 0 ? -1 : timerfd_settime(fd, 0, &far, NULL);
}
static int signal_descriptors(long i) {
    (void)i;
    sigset_t all;
    sigfillset(&all);
    return signalfd(-1, &all, 0);
}
static int pipes(long i) {
    (void)i;
    int two[2];
    if (pipe2(two, O_NONBLOCK)) return -1;
    for (int size = 1 << 20; size >= PAGE && fcntl(two[1], F_SETPIPE_SZ, size) < 0; size /= 2) {}
    while (write(two[1], room, sizeof room) > 0) {}
    return 0;
}
/* A byte to each page of a pipe, by tee, which takes no copy. */
static int teed_pipes(long i) {
    static int first[2];
    int two[2];
    if (i == 0 && (pipe2(first, O_NONBLOCK) || write(first[1], room, 65536) < 0)) return -1;
    if (pipe2(two, O_NONBLOCK)) return -1;
    return tee(first[0], two[1], 65536, 0) < 0 ? -1 : 0;
}
static int spliced_pages(long i) {
    (void)i;
    int two[2];
    if (pipe2(two, O_NONBLOCK)) return -1;
    char *pages = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct iovec all = {pages, 64 * PAGE};
    long done = vmsplice(two[1], &all, 1, 0);
    munmap(pages, 64 * PAGE);
    return done < 0 ? -1 : 0;
}
static int pairs(long i, int type) {
    (void)i;
    int two[2], size = 16 << 20;
    if (socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, two)) return -1;
    for (int k = 0; k < 2; k++) {
        setsockopt(two[k], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        setsockopt(two[k], SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
        for (int length = 65536; length; length /= 4)
            while (send(two[k], room, (size_t)length, 0) > 0) {}
    }
    return 0;
}
static int streams(long i) { return pairs(i, SOCK_STREAM); }
static int packets(long i) { return pairs(i, SOCK_SEQPACKET); }
static int datagrams(long i) { return pairs(i, SOCK_DGRAM); }
/* One byte a packet: what each weighs besides. */
static int small_packets(long i) {
    (void)i;
    int two[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, two)) return -1;
    while (send(two[0], "x", 1, 0) > 0) {}
    while (send(two[1], "x", 1, 0) > 0) {}
    return 0;
}
static int send_descriptor(int by, int fd) {
    char control[CMSG_SPACE(sizeof fd)];
    struct iovec byte = {"x", 1};
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    return sendmsg(by, &message, MSG_DONTWAIT) < 0 ? -1 : 0;
}
/* Descriptors that only a socket holds: each a pipe that is full. */
static int descriptors_on_their_way(long i) {
    static int two[2];
    if (i % 50 == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, two)) return -1;
    int pair[2];
    if (pipe2(pair, O_NONBLOCK)) return -1;
    while (write(pair[1], room, sizeof room) > 0) {}
    int done = send_descriptor(two[0], pair[0]) | send_descriptor(two[0], pair[1]);
    close(pair[0]), close(pair[1]);
    return done;
}
/* A listener whose connections nobody takes; who connected has gone. */
static int connections(long i) {
    static int listener = -1;
    static struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (i % 4096 == 0) {
        listener = socket(AF_UNIX, SOCK_STREAM, 0);
        snprintf(address.sun_path, sizeof address.sun_path, "s%d-%ld", me, i);
        if (listener < 0 || bind(listener, (void *)&address, sizeof address) || listen(listener, 1 << 20)) return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int done = fd < 0 ? -1 : connect(fd, (void *)&address, sizeof address);
    send(fd, room, 65536, 0);
    close(fd);
    return done;
}
static int bound_sockets(long i) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(address.sun_path + 1, 'a', sizeof address.sun_path - 1);
    snprintf(address.sun_path + 1, 30, "%d-%ld", me, i);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    return fd < 0 ? -1 : bind(fd, (void *)&address, sizeof address);
}
static int queued_signals(long i) {
    if (i == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
    }
    union sigval value = {.sival_int = 1};
    return sigqueue(getpid(), SIGRTMIN + 1, value);
}
static int timers(long i) {
    (void)i;
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    int id;
    return (int)syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &id);
}
static int shared_segments(long i) {
    (void)i;
    return shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
}
static int semaphores(long i) { (void)i; return (int)syscall(SYS_semget, 0, 32000, 0600 | IPC_CREAT); }
static int message_queues(long i) { (void)i; return (int)syscall(SYS_msgget, 0, 0600 | IPC_CREAT); }
static int keys(long i) { return (int)syscall(SYS_add_key, "user", own("k", i, 0), room, 4096, -1); }
/* Neighbours that cannot become one. */
static int mappings(long i) {
    int how = i % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
    return mmap(NULL, PAGE, how, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0;
}
static int private_mappings(long i) {
    static char *all;
    if (i == 0) all = mmap(NULL, 400 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mprotect(all + 2 * PAGE * i, PAGE, PROT_READ | PROT_WRITE) || (all[2 * PAGE * i] = 1) != 1 ? -1 : 0;
}
static int named_mappings(long i) {
    char *at = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? -1 : prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, at, PAGE, own("v", i, 70));
}
/* Read once each 2 MiB: a page of page table for each, of one page that is all zeros. */
static int page_tables(long i) {
    static volatile char *at;
    if (i % 512 == 0) {
        at = mmap(NULL, 1L << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return -1;
    }
    return at[(i % 512) << 21] == 1;
}
static int guards(long i) {
    static char *at;
    if (i % 16 == 0) at = mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? -1 : madvise(at + (i % 16 << 21), PAGE, 102);
}
static int memory_files(long i) {
    (void)i;
    int fd = memfd_create("soak", 0);
    return fd < 0 ? -1 : write(fd, room, PAGE) < 0 ? -1 : 0;
}
static int sparse_memory_file(long i) {
    static int fd = -1;
    if (i == 0) fd = memfd_create("soak", 0);
    return pwrite(fd, "x", 1, i << 24) == 1 ? 0 : -1;
}
static int merged_pages(long i) { (void)i; return prctl(67, 1, 0, 0, 0); }
static int futex_tables(long i) { (void)i; return prctl(78, 1, 1 << 20, 0, 0); }
static int process_ids(long i) {
    (void)i;
    pid_t child = fork();
    if (child == 0) setsid(), _exit(0);
    if (child < 0) return -1;
    int fd = (int)syscall(SYS_pidfd_open, child, 0);
    waitpid(child, NULL, 0);
    return fd;
}
static int credentials(long i) {
    (void)i;
    setresuid(-1, -1, -1), prctl(PR_SET_KEEPCAPS, i % 2);
    return open("/dev/null", O_RDONLY);
}
static int owners_of_descriptors(long i) {
    (void)i;
    int fd = eventfd(0, 0), two[2];
    if (fd < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, two)) return -1;
    int on = 1;
    ioctl(two[0], FIOASYNC, &on);
    return fcntl(two[0], F_SETOWN, getpid());
}
static int processes(long i) {
    (void)i;
    pid_t child = fork();
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL), pause(), _exit(0);
    return child < 0 ? -1 : 0;
}
static int affinities(long i) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(i % 2, &one);
    return sched_setaffinity(0, sizeof one, &one), 0;
}
static int proc_files(long i) {
    static const char *const FILES[] = {"/proc/self/maps", "/proc/self/smaps", "/proc/self/mountinfo", "/proc/self/status", "/proc/self/environ"};
    int fd = open(FILES[i % 5], O_RDONLY);
    return fd < 0 ? -1 : read(fd, room, 16) < 0 ? -1 : 0;
}
static int terminals(long i) { (void)i; return open("/dev/ptmx", O_RDWR | O_NOCTTY); }
static int filters(long i) {
    (void)i;
    struct { unsigned short code; unsigned char jt, jf; unsigned k; } program[4000];
    for (int k = 0; k < 4000; k++) program[k].code = 6, program[k].k = 0x7fff0000, program[k].jt = program[k].jf = 0;
    struct { unsigned short length; void *program; } all = {4000, program};
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    return fd < 0 ? -1 : setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all);
}
static int reserved_blocks(long i) {
    struct { short type, whence; long start, length; int system; unsigned pid; int pad[4]; } range = {0, 0, 0, 1 << 28, 0, 0, {0}};
    int fd = file(i), a, b;
    if (fd < 0) return -1;
    a = ioctl(fd, 0x4030582a, &range), b = ioctl(fd, 0x40305839, &range);
    return a && b && fallocate(fd, 1, 0, 1 << 26) ? -1 : 0;
}

/* Every other call that is allowed and takes something: with nothing, and with a descriptor and room. What waits is
 * interrupted. */
static const short REST[] = {
    SYS_lseek, SYS_statfs, SYS_fstatfs, SYS_fstat, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_umask,
    SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_fsync, SYS_fdatasync,
    SYS_sync_file_range, SYS_fadvise64, SYS_readahead, SYS_copy_file_range, SYS_sendfile, SYS_ppoll, SYS_pselect6,
    SYS_msync, SYS_mincore, SYS_membarrier, SYS_pkey_alloc, SYS_pkey_free, SYS_get_mempolicy, SYS_getcpu,
    SYS_sched_getaffinity, SYS_sched_yield, SYS_sched_getparam, SYS_sched_setparam, SYS_sched_getscheduler,
    SYS_sched_setscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval,
    SYS_sched_getattr, SYS_sched_setattr, SYS_getpriority, SYS_setpriority, SYS_ioprio_get, SYS_execve, SYS_execveat,
    SYS_set_robust_list, SYS_get_robust_list, SYS_rseq, SYS_futex, SYS_futex_waitv, SYS_gettid, SYS_getpid, SYS_getppid,
    SYS_rt_sigaction, SYS_rt_sigsuspend, SYS_rt_sigtimedwait, SYS_sigaltstack, SYS_restart_syscall, SYS_nanosleep,
    SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_times, SYS_getitimer, SYS_getuid,
    SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_getpgid, SYS_getsid, SYS_capget,
    SYS_getrusage, SYS_sysinfo, SYS_uname, SYS_getrandom, SYS_prlimit64, SYS_getsockname, SYS_getpeername, SYS_getsockopt,
    SYS_personality, SYS_set_tid_address,
    /* cachestat, futex_wake, futex_wait and futex_requeue, which older headers do not name */ 451, 454, 455, 456,
#ifdef __x86_64__
    SYS_access, SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat, SYS_poll, SYS_select, SYS_pause,
    SYS_time, SYS_getpgrp, SYS_arch_prctl, SYS_getrlimit, SYS_setrlimit,
#endif
};
static void nothing(int number) { (void)number; }
static int the_rest(long i) {
    static int fd = -1;
    if (i == 0) {
        fd = file(0);
        struct sigaction interrupt = {.sa_handler = nothing};
        sigaction(SIGALRM, &interrupt, NULL);
        struct itimerval often = {{0, 1000}, {0, 1000}};
        setitimer(ITIMER_REAL, &often, NULL);
    }
    /* Some write there. */
    static char path[8192];
    strcpy(path, "f0-0-");
    path[1] = (char)('0' + me);
    long number = REST[i / 3 % (long)(sizeof REST / sizeof *REST)];
    if (i % 3 == 0) return syscall(number, 0, 0, 0, 0, 0, 0), 0;
    if (i % 3 == 1) return syscall(number, fd, room + 4096, 16, 0, 0, 0), 0;
    return number == SYS_rt_sigaction || number == SYS_set_robust_list ? 0 : (int)(syscall(number, path, room + 4096, room + 8192, 64, 0, 0) & 0);
}

static const struct family { const char *name; int (*step)(long); const char *calls; } FAMILIES[] = {
    {"record_locks", record_locks, "fcntl"},
    {"locks_of_the_gone", locks_of_the_gone, "clone fcntl"},
    {"descriptor_locks", descriptor_locks, "fcntl"}, {"flocks", flocks, "flock"}, {"leases", leases, "fcntl"},
    {"directory_notes", directory_notes, "fcntl"}, {"acls", acls, "setxattr lsetxattr fsetxattr"},
    {"attributes", attributes, "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr"},
    {"empty_files", empty_files, "open openat creat close"}, {"directories", directories, "mkdir mkdirat rmdir"},
    {"deep_directories", deep_directories, "chdir fchdir getcwd"}, {"symlinks", symlinks, "symlink symlinkat readlink readlinkat"},
    {"short_symlinks", short_symlinks, "symlink symlinkat"}, {"hard_links", hard_links, "link linkat"},
    {"fifos", fifos, "mknod mknodat"}, {"unlinked_files", unlinked_files, "unlink unlinkat"},
    {"temporary_files", temporary_files, "openat"}, {"sparse_files", sparse_files, "write pwrite64 pwritev pwritev2 writev lseek"},
    {"holes", holes, "truncate ftruncate"}, {"names_that_are_not", names_that_are_not, "stat lstat newfstatat statx access faccessat faccessat2"},
    {"names_that_are_not_here", names_that_are_not_here, "stat"}, {"renames", renames, "rename renameat renameat2"},
    {"watches", watches, "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch"},
    {"watches_of_the_system", watches_of_the_system, "inotify_add_watch"}, {"watch_instances", watch_instances, "inotify_init1"},
    {"unread_events", unread_events, "inotify_add_watch"}, {"polled", polled, "epoll_ctl dup dup2 dup3"},
    {"polled_often", polled_often, "epoll_ctl epoll_wait epoll_pwait epoll_pwait2"}, {"sets", sets, "epoll_create epoll_create1"},
    {"event_counters", event_counters, "eventfd eventfd2"}, {"descriptor_timers", descriptor_timers, "timerfd_create timerfd_settime timerfd_gettime"},
    {"signal_descriptors", signal_descriptors, "signalfd signalfd4"}, {"pipes", pipes, "pipe pipe2 fcntl"},
    {"teed_pipes", teed_pipes, "tee splice"}, {"spliced_pages", spliced_pages, "vmsplice"},
    {"streams", streams, "socket socketpair sendto sendmsg sendmmsg setsockopt"}, {"packets", packets, "socketpair"},
    {"datagrams", datagrams, "socketpair"}, {"small_packets", small_packets, "socketpair"},
    {"descriptors_on_their_way", descriptors_on_their_way, "sendmsg recvmsg recvmmsg recvfrom"},
    {"connections", connections, "bind listen accept accept4 connect shutdown"}, {"bound_sockets", bound_sockets, "bind"},
    {"queued_signals", queued_signals, "rt_sigqueueinfo rt_tgsigqueueinfo kill tkill tgkill pidfd_send_signal rt_sigpending"},
    {"timers", timers, "timer_create timer_settime timer_gettime timer_getoverrun timer_delete"},
    {"shared_segments", shared_segments, "shmget shmat shmctl shmdt"}, {"semaphores", semaphores, ""},
    {"message_queues", message_queues, ""}, {"keys", keys, ""}, {"mappings", mappings, "mmap munmap mremap"},
    {"private_mappings", private_mappings, "mprotect pkey_mprotect brk mseal map_shadow_stack"}, {"named_mappings", named_mappings, "prctl"},
    {"page_tables", page_tables, "mmap mlock mlock2 mlockall munlock munlockall"}, {"guards", guards, "madvise"},
    {"memory_files", memory_files, "memfd_create"}, {"sparse_memory_file", sparse_memory_file, "memfd_create"},
    {"merged_pages", merged_pages, "prctl"}, {"futex_tables", futex_tables, "prctl"}, {"process_ids", process_ids, "pidfd_open setsid setpgid waitid wait4"},
    {"credentials", credentials, "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset"},
    {"owners_of_descriptors", owners_of_descriptors, "ioctl fcntl"}, {"processes", processes, "clone fork vfork"},
    {"affinities", affinities, "sched_setaffinity"}, {"proc_files", proc_files, "read readv pread64 preadv preadv2 getdents getdents64"},
    {"terminals", terminals, "ioctl"}, {"filters", filters, "setsockopt"}, {"reserved_blocks", reserved_blocks, "fallocate ioctl"},
    {"the_rest", the_rest, ""},
};
enum { COUNT = sizeof FAMILIES / sizeof *FAMILIES };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void rest_until(double until) {
    for (double left = until - now(); left > 0; left = until - now()) {
        struct timespec rest = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&rest, NULL);
    }
}

static void work(const struct family *family, double until) {
    long steps = 0;
    while (now() < until && family->step(steps) != -1) steps++;
    int last = errno;
    if (me == 0) printf("%s: %ld steps, %s\n", family->name, steps, now() < until ? strerrorname_np(last) : "all the time");
    fflush(stdout);
    rest_until(until);
    _exit(0);
}

/* All eight of one family, in a directory of their own that is emptied afterwards. */
static void run(const struct family *family, double seconds, const char *directory) {
    static char place[512], empty[600];
    snprintf(place, sizeof place, "%s/%s", directory, family->name);
    if (mkdir(place, 0700) || chdir(place)) exit(2);
    printf("%s\n", family->name);
    fflush(stdout);
    double until = now() + seconds;
    /* This one is a process too. */
    for (me = 0; me < PROCESSES - 1; me++) {
        pid_t child = fork();
        if (child == 0) work(family, until);
        if (child < 0) break;
    }
    int status;
    pid_t ended;
    while ((ended = wait(&status)) > 0 || errno == EINTR)
        if (ended > 0 && WIFSIGNALED(status)) printf("%s: a process was ended by signal %d\n", family->name, WTERMSIG(status));
    fflush(stdout);
    /* Also when all were ended before: whoever watches takes his time. */
    rest_until(until);
    if (chdir("/")) exit(2);
    snprintf(empty, sizeof empty, "rm -rf %s", place);
    if (system(empty)) exit(3);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        for (int i = 0; i < COUNT; i++) printf("%s: %s\n", FAMILIES[i].name, FAMILIES[i].calls);
        printf("rest:");
        for (unsigned i = 0; i < sizeof REST / sizeof *REST; i++) printf(" %d", REST[i]);
        printf("\n");
        return 0;
    }
    /* It changes modes and owners of whatever its descriptors are. */
    if (geteuid() == 0) return 4;
    signal(SIGXFSZ, SIG_IGN);
    /* As every skill must within a minute; Bash has nobody to call. */
    if (getenv("CYBEROS_BROKER_SOCKET") && system("/opt/cyberos/bin/cyberos-call --list >/dev/null")) return 5;
    /* One that is ended as the largest for want of memory is a child. */
    for (int i = 0; i < COUNT; i++) {
        for (int k = 3; k < argc; k++)
            if (!strcmp(FAMILIES[i].name, argv[k])) run(&FAMILIES[i], atof(argv[1]), argv[2]);
    }
    return 0;
}
