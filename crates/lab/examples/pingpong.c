/* A minimal request/response pair of one byte over TCP, as a reference for the built-in `rr`.
 *   pingpong server ADDR PORT FLOWS            a process a flow, as netserver
 *   pingpong client ADDR PORT FLOWS SECONDS    a process a flow, as netperf; prints transactions a second of all
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    int flows = atoi(argv[4]), one = 1, server = !strcmp(argv[1], "server");
    double seconds = argc > 5 ? atof(argv[5]) : 0;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    if (inet_pton(AF_INET, argv[2], &to.sin_addr) != 1) return 2;
    int listener = -1;
    if (server) {
        listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (struct sockaddr *)&to, sizeof to) || listen(listener, flows)) die("listen");
    }
    double *rates = mmap(0, flows * sizeof *rates, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int flow = 0; flow < flows; flow++) {
        if (fork()) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char byte = 0;
        int s;
        if (server) {
            s = accept(listener, 0, 0);
            setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            while (recv(s, &byte, 1, 0) == 1 && send(s, &byte, 1, 0) == 1) {}
            exit(0);
        }
        s = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (int i = 0; connect(s, (struct sockaddr *)&to, sizeof to); i++) {
            if (i == 250) die("connect");
            usleep(20000);
        }
        long count = 0;
        double start = now(), end;
        do {
            if (send(s, &byte, 1, 0) != 1 || recv(s, &byte, 1, 0) != 1) die("transaction");
            count++;
            end = now();
        } while (end - start < seconds);
        rates[flow] = count / (end - start);
        exit(0);
    }
    while (wait(0) > 0) {}
    double sum = 0;
    for (int flow = 0; flow < flows; flow++) sum += rates[flow];
    if (!server) printf("%.1f\n", sum);
    return 0;
}
