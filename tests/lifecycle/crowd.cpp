// SPDX-License-Identifier: Apache-2.0
//
// crowd COUNT: starts so many processes at once, each of which calls cuInit and stays. When all have their
// answer, one line of JSON: how long it took from the first fork, what the calls themselves took, and how
// often each result was given. Then everybody waits for the end of stdin.
#include <cuda.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kAnswers = 3;  // descriptors of a member
constexpr int kStay = 4;
constexpr int kAnswerDeadlineMs = 60'000;

struct Answer {
  int64_t init_ns;
  int32_t result;
  int32_t pid;
};

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

[[noreturn]] void fail(const char* what) {
  perror(what);
  exit(1);
}

int member() {
  const int64_t started_ns = now_ns();
  const auto result = static_cast<int32_t>(cuInit(0));
  const Answer answer = {now_ns() - started_ns, result, getpid()};
  // Less than PIPE_BUF: whole, whoever else writes.
  if (write(kAnswers, &answer, sizeof answer) != sizeof answer) return 1;
  char ignored;
  return read(kStay, &ignored, 1) == 0 ? 0 : 1;
}

std::vector<Answer> read_answers(int pipe, size_t count) {
  std::vector<Answer> answers(count);
  auto* bytes = reinterpret_cast<char*>(answers.data());
  for (size_t got = 0; got < count * sizeof(Answer);) {
    pollfd readable = {.fd = pipe, .events = POLLIN, .revents = 0};
    const ssize_t more = poll(&readable, 1, kAnswerDeadlineMs) == 1
                             ? read(pipe, bytes + got, count * sizeof(Answer) - got)
                             : 0;
    if (more <= 0) {
      fprintf(stderr, "only %zu of %zu processes answered\n", got / sizeof(Answer), count);
      exit(1);
    }
    got += static_cast<size_t>(more);
  }
  return answers;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "member") == 0) return member();
  const size_t count = argc == 2 ? strtoul(argv[1], nullptr, 10) : 0;
  if (count == 0) {
    fprintf(stderr, "usage: crowd COUNT\n");
    return 2;
  }
  int answers_pipe[2], stay[2];
  if (pipe2(answers_pipe, O_CLOEXEC) != 0 || pipe2(stay, O_CLOEXEC) != 0) fail("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, answers_pipe[1], kAnswers + 100);
  posix_spawn_file_actions_adddup2(&actions, stay[0], kStay);
  posix_spawn_file_actions_adddup2(&actions, kAnswers + 100, kAnswers);
  posix_spawn_file_actions_addclose(&actions, kAnswers + 100);

  char program[] = "/proc/self/exe";
  char role[] = "member";
  char* const arguments[] = {program, role, nullptr};
  const int64_t started_ns = now_ns();
  std::vector<pid_t> members(count);
  for (pid_t& pid : members) {
    if (const int failure = posix_spawn(&pid, program, &actions, nullptr, arguments, environ); failure != 0) {
      fprintf(stderr, "process %zu: %s\n", static_cast<size_t>(&pid - members.data()), strerror(failure));
      return 1;
    }
  }
  close(answers_pipe[1]);
  close(stay[0]);
  std::vector<Answer> answers = read_answers(answers_pipe[0], count);
  const double all_ms = static_cast<double>(now_ns() - started_ns) / 1e6;

  std::sort(answers.begin(), answers.end(),
            [](const Answer& a, const Answer& b) { return a.init_ns < b.init_ns; });
  std::map<int32_t, int> results;
  for (const Answer& answer : answers) ++results[answer.result];
  const auto init_ms = [&](size_t index) { return static_cast<double>(answers[index].init_ns) / 1e6; };
  printf(R"({"all_ms": %.1f, "median_init_ms": %.3f, "longest_init_ms": %.3f, "results": {)", all_ms,
         init_ms(count / 2), init_ms(count - 1));
  const char* separator = "";
  for (const auto& [result, times] : results) {
    printf("%s\"%d\": %d", separator, result, times);
    separator = ", ";
  }
  printf("}}\n");
  fflush(stdout);

  char ignored;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  close(stay[1]);
  for (const pid_t pid : members) waitpid(pid, nullptr, 0);
  return 0;
}
