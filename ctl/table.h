// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace ctl {

// A plain text table: columns as wide as their widest cell, two blanks between them, numbers to the right.
class Table {
 public:
  enum class Align : unsigned char { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Exactly `width` characters: cut (with a ~) or filled up.
std::string fit(const std::string& text, size_t width, Table::Align align = Table::Align::kLeft);

// "24.8", or "-" for a negative (unknown) value.
std::string format_percent(double percent);

}  // namespace ctl
