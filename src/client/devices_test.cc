#include "client/devices.h"

#include <gtest/gtest.h>

#include "client/fake_device_suite.h"

namespace orbitkv::client {
namespace {

struct Opened {
  std::map<std::string, std::shared_ptr<FakeDevice>> gpus;
  int opens = 0;
  Devices::OpenCuda opener() {
    return [this](const std::string& name) -> Result<std::shared_ptr<device::Device>> {
      ++opens;
      auto it = gpus.find(name);
      if (it == gpus.end()) return reject("no GPU is called " + name);
      return std::shared_ptr<device::Device>(it->second);
    };
  }
};

TEST(Devices, EveryNameOfADeviceIsOneObject) {
  Opened cuda;
  cuda.gpus["cuda:1"] = std::make_shared<FakeDevice>("GPU-b");
  cuda.gpus["GPU-b"] = std::make_shared<FakeDevice>("GPU-b");
  cuda.gpus["MIG-c"] = std::make_shared<FakeDevice>("MIG-c");
  Devices devices(cuda.opener());
  const auto host = devices.find("cpu:0"), first = devices.find("cuda:1"), same = devices.find("GPU-b"),
             other = devices.find("MIG-c");
  ASSERT_TRUE(host.ok() && first.ok() && same.ok() && other.ok());
  EXPECT_EQ(*first, *same);
  EXPECT_NE(*first, *other);
  EXPECT_EQ(*devices.find("cpu:0"), *host);
  EXPECT_EQ(*devices.find("cuda:1"), *first);
  EXPECT_EQ(cuda.opens, 3);
  EXPECT_FALSE(Devices::is_gpu(**host));
  EXPECT_TRUE(Devices::is_gpu(**first));
}

TEST(Devices, WhatIsNotThereIsRefusedAndAskedForAgain) {
  Opened cuda;
  Devices devices(cuda.opener());
  for (const char* name : {"", "tpu:0", "cpu:1", "cuda"}) {
    const auto found = devices.find(name);
    ASSERT_FALSE(found.ok()) << name;
    EXPECT_EQ(found.error().code(), Code::kReject);
    EXPECT_NE(found.error().message().find("cuda:<number>"), std::string::npos);
  }
  EXPECT_EQ(devices.find("cuda:0").error().message(), "no GPU is called cuda:0");
  cuda.gpus["cuda:0"] = std::make_shared<FakeDevice>();
  EXPECT_TRUE(devices.find("cuda:0").ok());
}

TEST(Devices, EverySlabIsGivenToEveryDeviceUntilItGoes) {
  Opened cuda;
  auto early = cuda.gpus["cuda:0"] = std::make_shared<FakeDevice>("GPU-a");
  auto late = cuda.gpus["cuda:1"] = std::make_shared<FakeDevice>("GPU-b");
  Devices devices(cuda.opener());
  ASSERT_TRUE(devices.find("cuda:0").ok());
  std::vector<std::byte> one(64), two(64), three(64);
  devices.add_slab(one);
  devices.add_slab(two);
  devices.remove_slab(one);
  EXPECT_EQ(early->slabs, std::vector<const std::byte*>{two.data()});
  ASSERT_TRUE(devices.find("cuda:1").ok());
  EXPECT_EQ(late->slabs, std::vector<const std::byte*>{two.data()});
  devices.add_slab(three);
  EXPECT_EQ(early->slabs, (std::vector<const std::byte*>{two.data(), three.data()}));
  EXPECT_EQ(late->slabs, early->slabs);
  devices.remove_slab(two);
  devices.remove_slab(three);
  EXPECT_TRUE(early->slabs.empty() && late->slabs.empty());
}

}  // namespace
}  // namespace orbitkv::client
