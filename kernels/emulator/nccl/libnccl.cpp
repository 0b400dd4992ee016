// A libnccl.so.2 without GPUs, for tests: NCCL's sends and receives (nccl.h of 2.18) between threads and processes of one host, over
// shared memory. Its device is the host: streams are threads that run what was handed to them, in order and later.
//
// What goes wrong stands in EMULATED_NCCL, a list with commas, of rank R at the N-th group of its process, counted from 0:
//   error@R:N    the group never ends, and the communicator says that a peer failed
//   hang@R:N     the group never ends, and nobody says why
//   refuse@R:0   no communicator begins
//   late@R:N     what is computed before the group ends three seconds later
// EMULATED_NCCL_SEED=S has streams pause at moments drawn from S.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int SUCCESS = 0, SYSTEM = 2, INVALID = 4, MISUSED = 5, REMOTE = 6, IN_PROGRESS = 7;
constexpr uint64_t CAPACITY = 1 << 14;  // Bytes that one rank has under way to another: less than large tensors have.
constexpr int MOST = 64;                // Ranks.
constexpr auto LATE = std::chrono::seconds(3);

// From one rank to another. A message is its length and its bytes.
struct Channel {
  std::atomic<uint64_t> written, taken;
  char bytes[CAPACITY];
};

struct Segment {
  std::atomic<int> came, left;
  Channel channels[];
};

struct Stream;

struct Comm {
  std::string name;
  int rank, size;
  Segment* segment;
  size_t length;
  std::atomic<int> failed{SUCCESS};
  std::atomic<bool> aborted{false}, launching{false}, finalizing{false};
  std::atomic<int> tasks{0};
};

struct Operation {
  bool sends;
  char* bytes;
  uint64_t count;
  int peer;
  uint64_t done = 0;  // The length in front counts.
};

// A group of transfers or, without a communicator, a gate before one.
struct Task {
  Comm* comm = nullptr;
  std::vector<Operation> operations;
  std::string fault;
};

thread_local std::string last_error;
thread_local int depth = 0;
thread_local Task open_task;
thread_local Stream* open_stream = nullptr;

int fails(int code, const std::string& why) {
  last_error = why;
  return code;
}

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

// What is to go wrong for a rank at its next group, or when it begins.
std::string fault_of(int rank, long group, bool begins) {
  const std::string all = variable("EMULATED_NCCL") + ",";
  for (size_t at = 0, end; (end = all.find(',', at)) != std::string::npos; at = end + 1) {
    char kind[16] = "";
    int of = 0;
    long number = 0;
    if (sscanf(all.substr(at, end - at).c_str(), "%15[a-z]@%d:%ld", kind, &of, &number) != 3) continue;
    if (of == rank && number == group && (std::string(kind) == "refuse") == begins) return kind;
  }
  return "";
}

// As much of one operation as can be done now. A message is eight bytes of length, then its own.
bool advance(Comm* comm, Operation& operation) {
  const int from = operation.sends ? comm->rank : operation.peer, to = operation.sends ? operation.peer : comm->rank;
  Channel& channel = comm->segment->channels[from * comm->size + to];
  const uint64_t written = channel.written.load(std::memory_order_acquire);
  const uint64_t taken = channel.taken.load(std::memory_order_acquire);
  const uint64_t room = operation.sends ? CAPACITY - (written - taken) : written - taken;
  bool moved = false;
  if (operation.done == 0) {
    if (room < 8) return false;
    uint64_t at = operation.sends ? written : taken, length = operation.count;
    char text[8];
    memcpy(text, &length, 8);
    for (int i = 0; i < 8; i++) {
      char& there = channel.bytes[(at + i) % CAPACITY];
      if (operation.sends) there = text[i];
      else text[i] = there;
    }
    memcpy(&length, text, 8);
    if (length != operation.count) {
      fprintf(stderr, "emulated NCCL: rank %d has room for %lu bytes of rank %d, which sent %lu\n", comm->rank,
              (unsigned long)operation.count, operation.peer, (unsigned long)length);
      comm->failed = INVALID;
      return false;
    }
    (operation.sends ? channel.written : channel.taken).fetch_add(8, std::memory_order_release);
    operation.done = 8;
    return true;
  }
  const uint64_t here = operation.done - 8, at = operation.sends ? written : taken;
  uint64_t count = std::min(operation.count - here, std::min(room, CAPACITY - at % CAPACITY));
  if (count > 0) {
    char* there = channel.bytes + at % CAPACITY;
    if (operation.sends) memcpy(there, operation.bytes + here, count);
    else memcpy(operation.bytes + here, there, count);
    (operation.sends ? channel.written : channel.taken).fetch_add(count, std::memory_order_release);
    operation.done += count;
    moved = true;
  }
  return moved;
}

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  uint64_t submitted = 0, over = 0;
  bool given_up = false, ends = false;
  std::minstd_rand random{static_cast<unsigned>(atoi(variable("EMULATED_NCCL_SEED").c_str()) + getpid())};
  bool pauses = !variable("EMULATED_NCCL_SEED").empty();
  std::thread thread{[this] { serve(); }};

  void serve() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return ends || !tasks.empty(); });
      if (tasks.empty()) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      const bool ran = run(task);
      if (!ran) spoil(task);
      lock.lock();
      if (!ran) given_up = true;
      if (!given_up) over++;
      lock.unlock();
      if (task.comm) task.comm->tasks--;
    }
  }

  // What has not come is NaN: whoever reads it finds out.
  static void spoil(Task& task) {
    for (Operation& operation : task.operations) {
      const uint64_t here = operation.done < 8 ? 0 : operation.done - 8;
      if (!operation.sends) memset(operation.bytes + here, 0xff, operation.count - here);
    }
  }

  // All of a group side by side; of those between the same two ranks one after the other. Whether it came to its end.
  bool run(Task& task) {
    Comm* comm = task.comm;
    if (!comm) {
      if (task.fault == "late") std::this_thread::sleep_for(LATE);
      return true;
    }
    if (task.fault == "error") {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      comm->failed = REMOTE;
    }
    for (;;) {
      if (comm->aborted) return false;
      if (pauses && random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      bool done = task.fault.empty(), moved = false;
      bool busy[2][MOST] = {};
      for (Operation& operation : task.operations) {
        if (!task.fault.empty() || operation.done == operation.count + 8) continue;
        done = false;
        bool& is_busy = busy[operation.sends][operation.peer];
        if (is_busy) continue;
        is_busy = true;
        moved |= advance(comm, operation);
      }
      if (done) return true;
      if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
};

int operation(bool sends, char* bytes, size_t count, int peer, Comm* comm, Stream* stream) {
  if (depth == 0) return fails(MISUSED, "sends and receives are grouped here");
  if (peer < 0 || peer >= comm->size) return fails(INVALID, "no such peer");
  open_task.comm = comm;
  open_stream = stream;
  open_task.operations.push_back({sends, bytes, count, peer});
  return SUCCESS;
}

Segment* segment_of(const std::string& name, size_t length) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0) return nullptr;
  if (ftruncate(file, length) != 0) {
    close(file);
    return nullptr;
  }
  void* all = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return all == MAP_FAILED ? nullptr : static_cast<Segment*>(all);
}

void release(Comm* comm) {
  while (comm->tasks > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  munmap(comm->segment, comm->length);
  delete comm;
}

std::atomic<long> groups{0}, names{0};
std::atomic<int> latest_rank{0};  // Of this process, in the communicator that began last.

}  // namespace

extern "C" {

struct Id {
  char name[128];
};

struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

int ncclGetVersion(int* version) {
  *version = 22809;
  return SUCCESS;
}

const char* ncclGetErrorString(int code) {
  switch (code) {
    case SUCCESS: return "no error";
    case SYSTEM: return "unhandled system error";
    case INVALID: return "invalid argument";
    case MISUSED: return "invalid usage";
    case REMOTE: return "remote process exited or there was a network error";
    case IN_PROGRESS: return "NCCL operation in progress";
    default: return "internal error";
  }
}

const char* ncclGetLastError(void*) { return last_error.c_str(); }

int ncclGetUniqueId(Id* id) {
  memset(id, 0, sizeof(Id));
  std::random_device random;
  snprintf(id->name, sizeof id->name, "/annulus-nccl-%d-%ld-%08x%08x", getpid(), names++, random(), random());
  return SUCCESS;
}

int ncclCommInitRankConfig(Comm** comm, int size, Id id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->version < 21800 || config->blocking != 0)
    return fails(INVALID, "a non-blocking configuration of 2.18 is wanted");
  if (size < 1 || size > MOST || rank < 0 || rank >= size) return fails(INVALID, "no such rank");
  if (!fault_of(rank, 0, true).empty()) return fails(MISUSED, "Duplicate GPU detected, as was asked for");
  const size_t length = sizeof(Segment) + size * size * sizeof(Channel);
  Segment* segment = segment_of(id.name, length);
  if (!segment) return fails(SYSTEM, "no shared memory");
  *comm = new Comm{id.name, rank, size, segment, length};
  latest_rank = rank;
  if (++segment->came == size) shm_unlink(id.name);
  return IN_PROGRESS;
}

int ncclCommGetAsyncError(Comm* comm, int* state) {
  *state = comm->failed;
  const bool all_came = comm->segment->came == comm->size, all_left = comm->segment->left == comm->size;
  const bool goes_on = !all_came || comm->launching.exchange(false) || (comm->finalizing && !all_left);
  if (*state == SUCCESS && goes_on) *state = IN_PROGRESS;
  return SUCCESS;
}

int ncclCommFinalize(Comm* comm) {
  if (comm->tasks > 0) return fails(MISUSED, "a group is under way");
  comm->finalizing = true;
  comm->segment->left++;
  return IN_PROGRESS;
}

int ncclCommDestroy(Comm* comm) {
  release(comm);
  return SUCCESS;
}

int ncclCommAbort(Comm* comm) {
  comm->aborted = true;
  release(comm);
  return SUCCESS;
}

int ncclGroupStart() {
  if (depth++ == 0) open_task = Task{};
  return SUCCESS;
}

int ncclGroupEnd() {
  if (depth == 0) return fails(MISUSED, "no group was begun");
  if (--depth > 0 || open_task.operations.empty()) return SUCCESS;
  Comm* comm = open_task.comm;
  if (comm->failed != SUCCESS) return comm->failed;
  open_task.fault = fault_of(comm->rank, groups++, false);
  if (open_task.fault == "late") open_task.fault = "";
  comm->tasks++;
  comm->launching = true;
  std::lock_guard<std::mutex> lock(open_stream->mutex);
  open_stream->tasks.push_back(std::move(open_task));
  open_stream->submitted++;
  open_stream->changed.notify_one();
  return IN_PROGRESS;
}

int ncclSend(char* bytes, size_t count, int type, int peer, Comm* comm, Stream* stream) {
  return type == 1 ? operation(true, bytes, count, peer, comm, stream) : fails(INVALID, "bytes are wanted");
}

int ncclRecv(char* bytes, size_t count, int type, int peer, Comm* comm, Stream* stream) {
  return type == 1 ? operation(false, bytes, count, peer, comm, stream) : fails(INVALID, "bytes are wanted");
}

Stream* emulated_stream_create() { return new Stream; }

void emulated_stream_destroy(Stream* stream) {
  {
    std::lock_guard<std::mutex> lock(stream->mutex);
    stream->ends = true;
    stream->changed.notify_one();
  }
  stream->thread.join();
  delete stream;
}

// Stands for all that was computed before it; what is handed to the stream later waits for it.
void emulated_gate(Stream* stream) {
  Task task;
  task.fault = fault_of(latest_rank, groups, false);
  std::lock_guard<std::mutex> lock(stream->mutex);
  stream->tasks.push_back(std::move(task));
  stream->submitted++;
  stream->changed.notify_one();
}

uint64_t emulated_event_record(Stream* stream) {
  std::lock_guard<std::mutex> lock(stream->mutex);
  return stream->submitted;
}

// 0: the stream is past it; 1: not yet; 2: it never will be.
int emulated_event_query(Stream* stream, uint64_t number) {
  std::lock_guard<std::mutex> lock(stream->mutex);
  return stream->over >= number ? 0 : stream->given_up ? 2 : 1;
}
}
