// Open-loop client: sends one request each PERIOD microseconds, whatever came back, and counts each answer's time from the
// instant at which its request was due.
//
//   open_loop ADDRESS PERIOD_US SECONDS REQUEST [BUCKET_MS]
//
// ADDRESS is a path (unix socket) or 127.0.0.1:PORT. A PERIOD_US that begins with ~ is a mean: requests come at random, independent of each
// other. REQUEST may hold \r, \n and \\. All answers must be as long as the first.
// Prints, for each BUCKET_MS (1000) and then for all ("all"): answers, p50, p99, p99.9, longest in microseconds, answers beyond
// 10 ms. What is not answered in the second after the end counts with the time it has waited. Exit status 1: no answer.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int connect_to(const char *address) {
    const char *colon = strrchr(address, ':');
    if (!colon) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        strncpy(to.sun_path, address, sizeof to.sun_path - 1);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        return connect(fd, (struct sockaddr *)&to, sizeof to) ? -1 : fd;
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(colon + 1))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return connect(fd, (struct sockaddr *)&to, sizeof to) ? -1 : fd;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, int64_t *ns, size_t n) {
    if (!n)
        return;
    qsort(ns, n, sizeof *ns, by_size);
    size_t slow = 0;
    for (size_t i = 0; i < n; i++)
        slow += ns[i] > 10000000;
    double us[4] = {ns[(size_t)(0.5 * (n - 1))], ns[(size_t)(0.99 * (n - 1))], ns[(size_t)(0.999 * (n - 1))], ns[n - 1]};
    printf("%s %zu %.0f %.0f %.0f %.0f %zu\n", name, n, us[0] / 1e3, us[1] / 1e3, us[2] / 1e3, us[3] / 1e3, slow);
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: open_loop ADDRESS PERIOD_US SECONDS REQUEST [BUCKET_MS]\n");
        return 2;
    }
    int at_random = argv[2][0] == '~';
    int64_t period = atof(argv[2] + at_random) * 1000, seconds = atoi(argv[3]);
    char request[4096];
    size_t length = 0;
    for (const char *c = argv[4]; *c && length < sizeof request; c++) {
        if (*c == '\\' && c[1])
            c++, request[length++] = *c == 'r' ? '\r' : *c == 'n' ? '\n' : *c;
        else
            request[length++] = *c;
    }
    // Timers are exact, so that what is counted is not the client's own.
    prctl(PR_SET_TIMERSLACK, 1);
    int fd = connect_to(argv[1]);
    if (fd < 0) {
        fprintf(stderr, "cannot connect to %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    static char buffer[1 << 16];
    if (write(fd, request, length) != (ssize_t)length)
        return 1;
    ssize_t answer = 0, got;
    struct pollfd in = {.fd = fd, .events = POLLIN};
    while (poll(&in, 1, answer ? 100 : 5000) > 0 && (got = read(fd, buffer, sizeof buffer)) > 0)
        answer += got;
    if (answer <= 0) {
        fprintf(stderr, "no answer\n");
        return 1;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    int64_t n = seconds * 1000000000LL / period, *ns = calloc(n, sizeof *ns), *of = calloc(n, sizeof *of);
    int64_t *due = calloc(n + 1, sizeof *due);
    srand48(now_ns());
    for (int64_t i = 0; i < n; i++)
        due[i + 1] = due[i] + (at_random ? (int64_t)(-log(1 - drand48()) * period) : period);
    int64_t begin = now_ns() + 10000000, sent = 0, done = 0, part = 0, bytes = 0;
    while (done < n) {
        int64_t now = now_ns();
        if (now > begin + due[n] + 1000000000LL)
            break;
        while (sent < n && begin + due[sent] <= now) {
            ssize_t w = write(fd, request + part, length - part);
            if (w < 0)
                break;
            part += w;
            if (part < (ssize_t)length)
                break;
            part = 0;
            sent++;
        }
        while ((got = read(fd, buffer, sizeof buffer)) > 0) {
            now = now_ns();
            for (bytes += got; bytes >= answer && done < n; bytes -= answer, done++)
                ns[done] = now - (begin + due[done]);
        }
        if (got == 0)
            break;
        now = now_ns();
        int64_t until = sent < n ? begin + due[sent] : now + 1000000;
        int64_t left = until > now ? until - now : 0;
        struct timespec wait = {left / 1000000000, left % 1000000000};
        in.events = POLLIN | (part ? POLLOUT : 0);
        ppoll(&in, 1, &wait, NULL);
    }
    int64_t end = now_ns();
    for (int64_t i = done; i < n; i++)
        ns[i] = end - (begin + due[i]);
    int64_t bucket = (argc == 6 ? atoi(argv[5]) : 1000) * 1000000LL / period;
    for (int64_t from = 0; from < n && bucket > 0; from += bucket) {
        char name[24];
        snprintf(name, sizeof name, "%ld", (long)(from / bucket));
        int64_t count = from + bucket <= n ? bucket : n - from;
        memcpy(of, ns + from, count * sizeof *ns);
        print(name, of, count);
    }
    print("all", ns, n);
    return 0;
}
