/* What each system call answers a skill. Every number is called with zeros, which harm nothing where it is let through:
 * ok, EFAULT, EINVAL and EBADF then say that the kernel's own code was reached. Arguments that decide are below.
 * uretprobe and uprobe are asked of no filter: the kernel lets them past seccomp, since it puts them into programs itself. */
#include "probe.h"

#define CALL(number, name) [number] = #name,
static const char *const NAMES[1024] = {
#include "names.h"
};
#undef CALL
enum { LAST = 480 };

/* Their answers hang on the processor or on how the kernel was built: only whether they are let through is told. */
static const char *const BY_MACHINE[] = {"map_shadow_stack", "pkey_alloc", "get_mempolicy", "mseal", NULL};

static const char *through(const char *result) {
    int stopped = !strncmp(result, "SIG", 3) || !strcmp(result, "ENOSYS") || !strcmp(result, "EPERM") || !strcmp(result, "EACCES");
    return stopped ? result : "reaches the kernel";
}

static void numbers(void) {
    for (int nr = 0; nr <= LAST; nr++) {
        const char *result = OUTCOME(SYS(nr));
        const char *name = NAMES[nr];
        if (!name) {
            range("call, none of this number", nr, result);
            continue;
        }
        flush_range();
        for (int i = 0; BY_MACHINE[i]; i++)
            if (!strcmp(name, BY_MACHINE[i])) result = through(result);
        printf("call %d %s: %s\n", nr, name, result);
    }
    flush_range();
    TRY("number -1", SYS(-1L));
    TRY("number 1023", SYS(1023));
    TRY("number 0x7fffffff", SYS(0x7fffffffL));
    TRY("number 0x80000027", SYS(0x80000027L));
    TRY("number getpid + 2^32", SYS(39 + HIGH));
    TRY("number ptrace + 2^32", SYS(101 + HIGH));
    for (int nr = 0; nr <= 600; nr++) range("x32", nr, OUTCOME(SYS(0x40000000L | nr)));
    flush_range();
    for (int nr = 0; nr <= LAST; nr++) {
        const char *result = OUTCOME(long answer;
            __asm__ volatile("int $0x80" : "=a"(answer) : "a"((long)nr), "b"(0L), "c"(0L), "d"(0L), "S"(0L), "D"(0L)
                             : "r8", "r9", "r10", "r11", "memory");
            answer);
        range("int 0x80", nr, result);
    }
    flush_range();
}

/* The way to a name at which a mode is given; each makes "f" anew, or changes the mode of the "f" that is there. */
enum way { OPEN, OPEN_TMPFILE, OPENAT, OPENAT_TMPFILE, CREAT, MKDIR, MKDIRAT, MKNOD, MKNOD_FIFO, MKNODAT, CHMOD, CHMOD_DIR,
    CHMOD_BY_PROC, FCHMOD, FCHMODAT, FCHMODAT2, OPENAT2, MQ_OPEN, OPEN_NO_CREAT, WAYS };
static const char *const WAY[] = {"open O_CREAT", "open O_TMPFILE", "openat O_CREAT", "openat O_TMPFILE", "creat", "mkdir",
    "mkdirat", "mknod", "mknod of a FIFO", "mknodat", "chmod", "chmod of a directory", "chmod by /proc/self/fd", "fchmod",
    "fchmodat", "fchmodat2", "openat2", "mq_open", "open without O_CREAT"};

static long with_mode(enum way way, long mode) {
    const int at = AT_FDCWD;
    struct { unsigned long flags, mode, resolve; } how = {O_CREAT | O_WRONLY, (unsigned long)mode, 0};
    int fd = open("old", O_RDONLY);
    char by_proc[64];
    snprintf(by_proc, sizeof by_proc, "/proc/self/fd/%d", fd);
    switch (way) {
    case OPEN: return SYS(2, "f", O_CREAT | O_EXCL | O_WRONLY | HIGH, mode);
    case OPEN_TMPFILE: return SYS(2, ".", O_TMPFILE | O_WRONLY, mode);
    case OPENAT: return SYS(257, at, "f", O_CREAT | O_EXCL | O_WRONLY, mode);
    case OPENAT_TMPFILE: return SYS(257, at, ".", O_TMPFILE | O_WRONLY | HIGH, mode);
    case CREAT: return SYS(85, "f", mode);
    case MKDIR: return SYS(83, "f", mode);
    case MKDIRAT: return SYS(258, at, "f", mode);
    case MKNOD: return SYS(133, "f", mode | S_IFREG, 0);
    case MKNOD_FIFO: return SYS(133, "f", mode | S_IFIFO, 0);
    case MKNODAT: return SYS(259, at, "f", mode | S_IFREG, 0);
    case CHMOD: return SYS(90, "old", mode);
    case CHMOD_DIR: return SYS(90, "olddir", mode);
    case CHMOD_BY_PROC: return SYS(90, by_proc, mode);
    case FCHMOD: return SYS(91, fd, mode);
    case FCHMODAT: return SYS(268, at, "old", mode);
    case FCHMODAT2: return SYS(452, at, "old", mode, 0);
    case OPENAT2: return SYS(437, at, "f", &how, sizeof how);
    case MQ_OPEN: return SYS(240, "q", O_CREAT | O_RDWR, mode, NULL);
    case OPEN_NO_CREAT: return SYS(2, "old", O_RDONLY, mode);
    default: return -ENOSYS;
    }
}

static int set_id_bits(const char *name) {
    struct stat found;
    return lstat(name, &found) == 0 && found.st_mode & (S_ISUID | S_ISGID);
}

static void modes(void) {
    static const long MODES[] = {00755, 01777, 02755, 04755, 06755, 04000, 0200000 | 06755, HIGH | 04755, 1L << 63 | 02755};
    for (enum way way = 0; way < WAYS; way++)
        for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
            unlink("f"), rmdir("f"), unlink("old"), rmdir("olddir");
            close(open("old", O_CREAT | O_WRONLY, 0644)), mkdir("olddir", 0755);
            const char *result = OUTCOME(with_mode(way, MODES[i]));
            int bad = set_id_bits("f") || set_id_bits("old") || set_id_bits("olddir");
            printf("mode %s 0%lo: %s%s\n", WAY[way], (unsigned long)MODES[i], result, bad ? ", AND THE BIT IS SET" : "");
        }
    unlink("f"), rmdir("f"), unlink("old"), rmdir("olddir");
    close(open("old", O_CREAT | O_WRONLY, 0644));
    static const char capability[20] = {0, 0, 0, 2, 1};
    TRY("mode setxattr security.capability", SYS(188, "old", "security.capability", capability, sizeof capability, 0));
    unlink("old");
    TRY("mode mknod of a character device", SYS(133, "f", S_IFCHR | 0666, 0x103));
    TRY("mode mknod of a block device", SYS(133, "f", S_IFBLK | 0666, 0x800));
    unlink("f");
}

static void ioctls(void) {
    static const struct { const char *name; unsigned long request; } LIST[] = {
        {"TIOCSTI", 0x5412}, {"TIOCLINUX", 0x541c}, {"TIOCSETD", 0x5423}, {"TIOCSCTTY", 0x540e}, {"TIOCCONS", 0x541d},
        {"TIOCNOTTY", 0x5422}, {"TIOCGWINSZ", 0x5413}, {"TCSETS", 0x5402}, {"TCGETS", 0x5401}, {"TIOCGPTPEER", 0x5441},
        {"FIONREAD", 0x541b}, {"FIOCLEX", 0x5451}, {"FIONBIO", 0x5421}, {"FS_IOC_SETFLAGS", 0x40086602},
        {"FS_IOC_FSSETXATTR", 0x401c5820}, {"FICLONE", 0x40049409}, {"FIFREEZE", 0xc0045877}, {"NS_GET_USERNS", 0xb701},
        {"NS_GET_PARENT", 0xb702}, {"FUSE_DEV_IOC_CLONE", 0x8004e500}, {"KVM_CREATE_VM", 0xae01}, {"TUNSETIFF", 0x400454ca},
        {"LOOP_CTL_ADD", 0x4c80}, {"BLKROSET", 0x125d}, {"SIOCGIFCONF", 0x8912}, {"UFFDIO_API", 0xc018aa3f},
        {"PERF_EVENT_IOC_ENABLE", 0x2400}, {"VT_ACTIVATE", 0x5606}, {"PIDFD_GET_USER_NAMESPACE", 0xff09},
    };
    static const long ADD[] = {0, HIGH, 1L << 63, 1L << 31};
    for (size_t i = 0; i < sizeof LIST / sizeof *LIST; i++)
        for (size_t h = 0; h < 4; h++) {
            static long room[8];
            const char *more = h == 0 ? "" : h == 1 ? " + 2^32" : h == 2 ? " + 2^63" : " + 2^31";
            TRY(named("ioctl %s%s", LIST[i].name, more), SYS(16, 0, LIST[i].request + ADD[h], room));
        }
}

/* Commands of fcntl on a file of its own, and advice about a page of its own: what is not on the list never gets there. */
static void values(void) {
    int fd = open("old", O_CREAT | O_RDWR, 0644);
    for (int command = 0; command <= 40; command++) range("fcntl", command, OUTCOME(SYS(72, fd, command, 0)));
    for (int command = 1024; command <= 1040; command++) range("fcntl", command, through(OUTCOME(SYS(72, fd, command, 0))));
    flush_range();
    TRY("fcntl F_OFD_SETLK + 2^32", SYS(72, fd, 37 + HIGH, 0));
    static char page[4096] __attribute__((aligned(4096)));
    for (int advice = 0; advice <= 23; advice++) range("madvise", advice, OUTCOME(SYS(28, page, sizeof page, advice)));
    flush_range();
    TRY("madvise MADV_MERGEABLE + 2^32", SYS(28, page, sizeof page, 12 + HIGH));
    TRY("madvise MADV_HWPOISON", SYS(28, page, sizeof page, 100));
    static long range_of[8] = {0, 0, 1 << 20};
    TRY("ioctl FS_IOC_RESVSP64 of a file", SYS(16, fd, 0x4030582a, range_of));
    TRY("ioctl FS_IOC_ZERO_RANGE of a file", SYS(16, fd, 0x40305839, range_of));
    TRY("ioctl FS_IOC_GETFLAGS of a file", SYS(16, fd, 0x80086601, range_of));
    unlink("old");
}

static void clones(void) {
    static const struct { const char *name; unsigned long flag; } LIST[] = {
        {"no flag", 0}, {"CLONE_NEWTIME, which clone takes for a signal", 0x80}, {"CLONE_VM|VFORK", 0x4100},
        {"CLONE_FS", 0x200}, {"CLONE_FILES", 0x400}, {"CLONE_SIGHAND", 0x800}, {"CLONE_PIDFD", 0x1000},
        {"CLONE_PTRACE", 0x2000}, {"CLONE_PARENT", 0x8000}, {"CLONE_THREAD", 0x10000}, {"CLONE_NEWNS", 0x20000},
        {"CLONE_SYSVSEM", 0x40000}, {"CLONE_UNTRACED", 0x800000}, {"CLONE_NEWCGROUP", 0x2000000},
        {"CLONE_NEWUTS", 0x4000000}, {"CLONE_NEWIPC", 0x8000000}, {"CLONE_NEWUSER", 0x10000000},
        {"CLONE_NEWPID", 0x20000000}, {"CLONE_NEWNET", 0x40000000}, {"CLONE_IO", 0x80000000},
        {"CLONE_NEWUSER|NEWNS", 0x10020000},
    };
    for (size_t i = 0; i < sizeof LIST / sizeof *LIST; i++)
        for (int high = 0; high < 2; high++) {
            static int pidfd;
            TRY(named("clone %s%s", LIST[i].name, high ? " + 2^32" : ""),
                SYS(56, LIST[i].flag + (high ? HIGH : 0) + (LIST[i].flag == 0x80 ? 0 : SIGCHLD), 0, &pidfd));
        }
    for (size_t i = 0; i < sizeof LIST / sizeof *LIST; i++)
        TRY(named("unshare %s", LIST[i].name), SYS(272, LIST[i].flag));
    static unsigned long three[11];
    three[0] = 0x10000000, three[4] = SIGCHLD;
    TRY("clone3 CLONE_NEWUSER", SYS(435, three, sizeof three));
    three[0] = 0;
    TRY("clone3 no flag", SYS(435, three, sizeof three));
}

static void sockets(void) {
    static const struct { const char *name; int type; } TYPES[] = {{"STREAM", 1}, {"DGRAM", 2}, {"RAW", 3}, {"RDM", 4},
        {"SEQPACKET", 5}, {"DCCP", 6}, {"PACKET", 10}, {"none of 0", 0}, {"none of 7", 7}, {"STREAM|CLOEXEC|NONBLOCK", 02004001}};
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++) {
        static int two[2];
        for (int family = 0; family <= 50; family++) {
            range(named("socket %s of family", TYPES[t].name), family, OUTCOME(SYS(41, family, TYPES[t].type)));
        }
        flush_range();
        for (int family = 0; family <= 50; family++)
            range(named("socketpair %s of family", TYPES[t].name), family, OUTCOME(SYS(53, family, TYPES[t].type, 0, two)));
        flush_range();
    }
    TRY("socket AF_UNIX + 2^32", SYS(41, 1 + HIGH, 1));
    TRY("socket AF_INET + 2^32", SYS(41, 2 + HIGH, 1));
    TRY("socket AF_NETLINK + 2^33", SYS(41, 16 + 2 * HIGH, 3));
    TRY("socket AF_ALG + 2^63", SYS(41, 38 + (1L << 63), 5));
    static char options[64];
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    TRY("setsockopt SO_ATTACH_FILTER", SYS(54, fd, SOL_SOCKET, 26, options, 16));
    TRY("setsockopt SO_ATTACH_BPF", SYS(54, fd, SOL_SOCKET, 50, options, 4));
    TRY("setsockopt SO_SNDBUFFORCE", SYS(54, fd, SOL_SOCKET, 32, options, 4));
    TRY("setsockopt SO_BINDTODEVICE", SYS(54, fd, SOL_SOCKET, 25, "lo", 3));
    close(fd);
}

static void prctls(void) {
    static const int ODD[] = {PR_SET_PTRACER, 0x53564d41 /* PR_SET_VMA */, 0x41555856 /* PR_GET_AUXV */, PR_GET_TID_ADDRESS};
    /* By processor or kernel configuration: alignment, TSC, machine checks, vectors, speculation, tagged addresses, core
     * scheduling, memory-deny-write-execute, shadow stacks, timers that are restored, futex hashes. */
    static const unsigned char MACHINE[] = {5, 6, 9, 10, 11, 12, 19, 20, 25, 26, 33, 34, 45, 46, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59,
        60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82};
    for (int option = 0; option <= 82; option++) {
        const char *result = OUTCOME(SYS(157, option));
        int machine = memchr(MACHINE, option, sizeof MACHINE) != NULL;
        range("prctl", option, machine ? through(result) : result);
    }
    flush_range();
    for (size_t i = 0; i < sizeof ODD / sizeof *ODD; i++) TRY(named("prctl %#x", ODD[i]), SYS(157, ODD[i]));
    TRY("prctl PR_SET_SECCOMP strict", SYS(157, PR_SET_SECCOMP, 1));
    TRY("prctl PR_SET_SECCOMP filter", SYS(157, PR_SET_SECCOMP, 2, 0));
    TRY("prctl PR_SET_SECCOMP filter + 2^32", SYS(157, PR_SET_SECCOMP + HIGH, 2, 0));
    TRY("prctl PR_SET_NO_NEW_PRIVS to 0", SYS(157, PR_SET_NO_NEW_PRIVS, 0));
    TRY("prctl PR_SET_KEEPCAPS", SYS(157, PR_SET_KEEPCAPS, 1));
    TRY("prctl PR_SET_SECUREBITS", SYS(157, PR_SET_SECUREBITS, 1));
    TRY("prctl PR_CAPBSET_DROP", SYS(157, PR_CAPBSET_DROP, 21));
    TRY("prctl PR_CAP_AMBIENT raise", SYS(157, PR_CAP_AMBIENT, 2, 21));
    TRY("prctl PR_SET_MM", SYS(157, PR_SET_MM, 1, 4096));
    TRY("prctl PR_SET_CHILD_SUBREAPER", SYS(157, PR_SET_CHILD_SUBREAPER, 1));
    TRY("prctl PR_SET_DUMPABLE to 2", SYS(157, PR_SET_DUMPABLE, 2));
    TRY("prctl PR_SET_PTRACER any", SYS(157, PR_SET_PTRACER, -1L));
    TRY("prctl PR_SET_IO_FLUSHER", SYS(157, 57, 1));
    TRY("prctl PR_SCHED_CORE share from 1", SYS(157, 62, 3, 1, 0));
    TRY("prctl PR_SET_MM exe_file", SYS(157, PR_SET_MM, 13, 0));
    static const unsigned long PERSONALITIES[] = {0, 8, 0x0400000, 0x0040000, 0x0100000, 0x8000000, 0xffffffff};
    for (size_t i = 0; i < sizeof PERSONALITIES / sizeof *PERSONALITIES; i++) {
        TRY(named("personality %#lx", PERSONALITIES[i]), SYS(135, PERSONALITIES[i]));
        TRY(named("personality %#lx + 2^32", PERSONALITIES[i]), SYS(135, PERSONALITIES[i] + HIGH));
    }
}

static void limits(void) {
    static const char *const NAMES_OF_LIMITS[] = {"CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS",
        "LOCKS", "SIGPENDING", "MSGQUEUE", "NICE", "RTPRIO", "RTTIME"};
    for (int resource = 0; resource < 16; resource++) {
        static struct rlimit most, none = {0, 0};
        TRY(named("limit %s raised to the most there is", NAMES_OF_LIMITS[resource]), most.rlim_cur = most.rlim_max = RLIM_INFINITY;
            long answer = SYS(160, resource, &most);
            struct rlimit now;
            getrlimit(resource, &now);
            answer == 0 && now.rlim_max == RLIM_INFINITY ? 0 : answer == 0 ? -ENOTSUP : answer);
        if (resource == RLIMIT_CORE) {
            TRY("limit CORE lowered to 0, and it stays 1", long answer = SYS(302, 0, 4 + HIGH, &none, 0);
                SYS(160, 4, &none);
                struct rlimit now;
                getrlimit(resource, &now);
                now.rlim_cur == 1 && now.rlim_max == 1 ? answer : -ENOTSUP);
        }
    }
    TRY("limit of process 1", struct rlimit now; SYS(302, 1, RLIMIT_NOFILE, 0, &now));
    TRY("nice -1", SYS(141, 0, 0, -1));
    static int priority = 1;
    TRY("SCHED_FIFO", SYS(144, 0, 1, &priority));
    TRY("SCHED_DEADLINE", static unsigned attr[12] = {48, 6}; attr[4] = 0; SYS(314, 0, attr, 0));
    TRY("ioprio_set realtime", SYS(251, 1, 0, 1 << 13));
}

int main(void) {
    prepare();
    numbers();
    modes();
    ioctls();
    values();
    clones();
    sockets();
    prctls();
    limits();
    return fflush(stdout) ? 1 : 0;
}
