// SPDX-License-Identifier: Apache-2.0
#include "ctl/table.h"

#include <algorithm>
#include <cstdio>

namespace ctl {

std::string fit(const std::string& text, size_t width, Table::Align align) {
  if (text.size() > width) return width == 0 ? "" : text.substr(0, width - 1) + "~";
  const std::string blanks(width - text.size(), ' ');
  return align == Table::Align::kLeft ? text + blanks : blanks + text;
}

std::string format_percent(double percent) {
  if (percent < 0) return "-";
  char text[32];
  snprintf(text, sizeof text, "%.1f", percent);
  return text;
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.title.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add_line = [&](auto cell) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += "  ";
      line += fit(cell(i), widths[i], columns_[i].align);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) add_line([&](size_t i) { return row[i]; });
  return text;
}

}  // namespace ctl
