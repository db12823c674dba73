/* What keeps a pod's namespaces while its containers come and go. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { (void)signal, _exit(0); }
static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0) continue;
}

int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
