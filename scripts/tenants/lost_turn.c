/* Request and response of one byte over loopback, counted each second by a client that knows nothing of evenkeel.
 *   lost_turn FLOWS SECONDS CGROUP..    a server with FLOWS threads in each cgroup; the client stays where it is
 * Prints a line a second with each server's transactions, then how many seconds a server answered nothing.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

static volatile unsigned long counts[MOST][MOST];

struct flow {
    int socket, server, number;
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void at_once(int socket) {
    int one = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void *serve(void *given) {
    int socket = (int)(intptr_t)given;
    char byte;
    at_once(socket);
    while (recv(socket, &byte, 1, 0) == 1 && send(socket, &byte, 1, 0) == 1) {}
    return 0;
}

static void *ask(void *given) {
    struct flow *flow = given;
    char byte = 'x';
    at_once(flow->socket);
    while (send(flow->socket, &byte, 1, 0) == 1 && recv(flow->socket, &byte, 1, 0) == 1)
        counts[flow->server][flow->number]++;
    return 0;
}

static void enter(const char *cgroup) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", cgroup);
    int procs = open(path, O_WRONLY);
    if (procs < 0 || write(procs, "0", 1) != 1) die(path);
    close(procs);
}

int main(int argc, char **argv) {
    if (argc < 4 || argc - 3 > MOST) return 2;
    int flows = atoi(argv[1]), seconds = atoi(argv[2]), servers = argc - 3;
    if (flows < 1 || flows > MOST || seconds < 1) return 2;
    static struct flow all[MOST * MOST];
    pthread_t thread;
    for (int server = 0; server < servers; server++) {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof to;
        if (bind(listener, (void *)&to, size) || listen(listener, flows) || getsockname(listener, (void *)&to, &size))
            die("listen");
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            enter(argv[3 + server]);
            for (int flow = 0; flow < flows; flow++) {
                int socket = accept(listener, 0, 0);
                if (socket < 0 || pthread_create(&thread, 0, serve, (void *)(intptr_t)socket)) die("accept");
            }
            for (;;) pause();
        }
        for (int flow = 0; flow < flows; flow++) {
            int client = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(client, (void *)&to, sizeof to)) die("connect");
            all[server * flows + flow] = (struct flow){client, server, flow};
        }
        close(listener);
    }
    for (int flow = 0; flow < servers * flows; flow++)
        if (pthread_create(&thread, 0, ask, &all[flow])) die("thread");
    unsigned long before[MOST] = {0};
    int silent = 0;
    for (int second = 0; second < seconds; second++) {
        struct timespec one = {1, 0};
        nanosleep(&one, 0);
        for (int server = 0; server < servers; server++) {
            unsigned long now = 0;
            for (int flow = 0; flow < flows; flow++) now += counts[server][flow];
            printf("%8lu", now - before[server]);
            silent += now == before[server];
            before[server] = now;
        }
        printf("\n");
        fflush(stdout);
    }
    printf("%d seconds without an answer, of %d x %d\n", silent, seconds, servers);
    fflush(stdout);
    /* The servers die with this process. */
    _exit(0);
}
