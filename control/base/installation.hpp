// SPDX-License-Identifier: GPL-2.0-or-later
//
// An installation: a prefix with everything that a VM needs, as `cmake --install` and scripts/install-parts
// fill it and Debian's packages hold it. A program of ours is in one when it is PREFIX/bin/kagemusha or in
// PREFIX/libexec/kagemusha, and our scripts are below PREFIX; else it is in a build directory of a source
// tree. Nothing of an installation is built when it is missing: the sentence says what to install.
#pragma once

#include "control/base/assets.hpp"

#include <optional>
#include <string>

namespace kagemusha::control {

class installation {
public:
    // The one whose prefix this is; std::nullopt: it holds no installation.
    static std::optional<installation> at(const std::string& prefix);

    const std::string& prefix() const { return prefix_; }
    std::string scripts() const; // holds scripts/make-payload

    // One of our programs or libraries, by its file name; "" when it is not there.
    std::string find(const std::string& name) const;

    // Where QEMU and the guest's parts have to be, whether they are there or not.
    assets parts(const std::string& flavour) const;

    // What is missing of these parts, as a sentence with what to do; "" when all of them are there.
    std::string missing(const assets& parts, bool with_gpu) const;

private:
    explicit installation(std::string prefix) : prefix_(std::move(prefix)) {}
    std::string prefix_;
};

// The prefix of the installation that a program is in by its place; "": by its place in none.
std::string prefix_of(const std::string& program);

// The one that this process's program is in. Who sets KAGE_ROOT or KAGE_BUILD_DIR means a source tree.
std::optional<installation> own_installation();

// The file of this process's program, whether it is still that file or an upgrade has put another one there. "": the
// kernel does not say.
std::string own_program();
// Of what /proc/PID/exe leads to.
std::string program_of(std::string link);

// Another program of ours with this name: in the installation that this process's program is in by its place, else
// in the same folder of a build. It may be missing.
std::string program_beside(const std::string& name);

// The one that people call, `kagemusha`.
std::string tool_program();

// What a person types for this tool: "kagemusha", in a source tree "./kage".
std::string tool_word();

// "kagemusha-gpu is not built: …", or which package has it, for what find_built() did not find.
std::string not_there(const std::string& name);

} // namespace kagemusha::control
