#include "bench/fio.h"

#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace orbitkv::bench {
namespace {

struct Output {
  int status = -1;
  std::string text;
};
Output output_of(const std::string& command) {
  Output out;
  std::FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return out;
  char part[4096];
  std::size_t got;
  while ((got = std::fread(part, 1, sizeof part, pipe)) > 0) out.text.append(part, got);
  out.status = ::pclose(pipe);
  return out;
}

std::string command_of(const FioJob& job) {
  return format_text(
      "fio --name=job --output-format=json --ioengine=io_uring --direct=1 --fixedbufs --registerfiles "
      "--norandommap --randrepeat=0 --scramble_buffers=0 --time_based --runtime=%u --rw=%s --bs=%llu "
      "--iodepth=%u "
      "--size=%llu --iomem='%s' --filename='%s' 2>&1",
      job.seconds, job.write ? "randwrite" : "randread", static_cast<unsigned long long>(job.block.value),
      job.depth, static_cast<unsigned long long>(job.file_bytes.value), job.memory.c_str(), job.file.c_str());
}

}  // namespace

bool have_fio() {
  return output_of("fio --version 2>/dev/null").status == 0;
}

Result<FioFigures> run_fio(const FioJob& job) {
  const Output out = output_of(command_of(job));
  const auto begin = out.text.find('{');
  if (out.status != 0 || begin == out.text.npos)
    return reject(format_text("fio failed: %s", out.text.substr(0, 400).c_str()));
  const auto report = nlohmann::json::parse(out.text.substr(begin), nullptr, false);
  const auto figure = [&](const std::string& of_job) {
    const nlohmann::json::json_pointer at("/jobs/0" + of_job);
    return report.contains(at) && report.at(at).is_number() ? report.at(at).get<double>() : -1.0;
  };
  const std::string side = job.write ? "/write" : "/read";
  const double bytes = figure(side + "/io_bytes");
  const double seconds = figure(side + "/runtime") / 1000;
  const double cpu = (figure("/usr_cpu") + figure("/sys_cpu")) / 100 * seconds;
  if (bytes <= 0 || seconds <= 0) return reject("fio moved no byte, or its report cannot be read");
  return FioFigures{bytes / seconds / 1e9, cpu / (bytes / static_cast<double>(kGiB.value))};
}

}  // namespace orbitkv::bench
