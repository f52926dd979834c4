// SPDX-License-Identifier: Apache-2.0
//
// A tenant that always has kernels queued, like `busy`, but launches them in one of the other ways:
// cooperatively, in clusters, or each allowed to begin before the one before it has ended.
#include "support.h"

namespace {

struct Launch {
  const samples::BusyKernel& kernel;
  cudaStream_t stream;

  void cooperative() const {
    Arguments arguments(kernel);
    CHECK(cudaLaunchCooperativeKernel(Arguments::function(), dim3(kernel.blocks()),
                                      dim3(samples::BusyKernel::kThreads), arguments.pointers, 0, stream));
  }

  void with(cudaLaunchAttribute attribute, unsigned blocks) const {
    Arguments arguments(kernel);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(samples::BusyKernel::kThreads);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelExC(&config, Arguments::function(), arguments.pointers));
  }

  void cluster() const {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {2, 1, 1};
    with(attribute, kernel.blocks() / 2 * 2);
  }

  void overlapped() const {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    with(attribute, kernel.blocks());
  }

 private:
  // The kernel's arguments by address, as these calls want them.
  struct Arguments {
    explicit Arguments(const samples::BusyKernel& kernel)
        : ns(kernel.ns()), rounds(kernel.rounds_for(kernel.ns())) {}
    static const void* function() { return reinterpret_cast<const void*>(samples::busy_for_ns); }
    uint64_t ns, rounds;
    float* sink = nullptr;
    void* pointers[3] = {&ns, &rounds, &sink};
  };
};

struct Form {
  const char* name;
  void (Launch::*launch)() const;
  cudaDeviceAttr needs;  // an attribute that says whether the GPU can do it
  int at_least;
};

// Clusters and programmatic launches are of compute capability 9.
constexpr Form kForms[] = {{"cooperative", &Launch::cooperative, cudaDevAttrCooperativeLaunch, 1},
                           {"cluster", &Launch::cluster, cudaDevAttrComputeCapabilityMajor, 9},
                           {"overlapped", &Launch::overlapped, cudaDevAttrComputeCapabilityMajor, 9}};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 2, kernel_us = 1000;
  std::string form_name = "cooperative";
  bool as_json = false;
  samples::Options options("Launches kernels without a pause, in another way than <<<>>>.");
  options.number("--seconds", &seconds, "how long (2)");
  options.number("--kernel-us", &kernel_us, "length of each kernel in microseconds (1000)");
  options.text("--form", &form_name, "cooperative, cluster or overlapped (cooperative)");
  options.flag("--json", &as_json, "one JSON object before the last line");
  options.parse(argc, argv);
  const Form* form = std::find_if(std::begin(kForms), std::end(kForms),
                                  [&](const Form& candidate) { return candidate.name == form_name; });
  if (form == std::end(kForms)) {
    fprintf(stderr, "launch_forms: '%s' is no form; cooperative, cluster and overlapped are\n",
            form_name.c_str());
    return 2;
  }
  int able = 0;
  CHECK(cudaDeviceGetAttribute(&able, form->needs, 0));
  if (able < form->at_least) {
    fprintf(stderr, "launch_forms: this GPU has no '%s' launches\n", form->name);
    return 1;
  }

  const samples::BusyKernel kernel(static_cast<uint64_t>(kernel_us * 1e3));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const Launch launch{kernel, stream};
  const uint64_t per_batch = samples::Pipeline::kernels_per_batch(kernel.ns());
  samples::Pipeline pipeline(stream);
  uint64_t kernels = 0;
  const uint64_t begin_ns = samples::now_ns();
  const uint64_t end_ns = begin_ns + static_cast<uint64_t>(seconds * 1e9);
  do {
    for (uint64_t i = 0; i < per_batch; ++i) (launch.*form->launch)();
    kernels += per_batch;
    pipeline.batch_queued();
  } while (samples::now_ns() < end_ns);
  CHECK(cudaStreamSynchronize(stream));
  const uint64_t wall_ns = samples::now_ns() - begin_ns;
  CHECK(cudaStreamDestroy(stream));

  samples::Report report;
  report.add("sample", "launch_forms");
  report.add("form", form->name);
  samples::add_rates(&report, kernels, kernel.ns(), wall_ns);
  return samples::finish(report, as_json);
}
