-- Numbers: expressions over measured tables, and the digits in prose that should have been one.
local sources = require 'sources'
local M = { used = {}, stale = {} }

local function split(line)
  local cells = {}
  for cell in (line .. '\t'):gmatch('([^\t]*)\t') do cells[#cells + 1] = cell end
  return cells
end

-- A table: a head, rows, and what its comment lines say (date, device, source, ...).
local tables = {}
local function tsv(path)
  if tables[path] then return tables[path] end
  local text = sources.read(path)
  if not text then error({ lack = 'there is no table ' .. path }) end -- it may still be measured
  local t = { path = path, rows = {}, says = {} }
  for n, line in ipairs(sources.lines(text)) do
    local word, rest = line:match('^# ([^\t]+)\t(.*)$')
    if word then t.says[word] = rest
    elseif not line:find('^#') and line:find('%S') then
      if t.head then t.rows[#t.rows + 1] = split(line)
      else
        t.head = {}
        for i, name in ipairs(split(line)) do t.head[name] = i end
      end
    end
  end
  t.head = t.head or {}
  tables[path] = t
  return t
end

local function text_of(key) return math.type(key) == 'float' and key % 1 == 0 and ('%d'):format(key) or tostring(key) end
local function same(cell, key) return cell == text_of(key) or (type(key) == 'number' and tonumber(cell) == key) end

-- The one row whose first columns are the keys.
local function row_of(t, keys)
  local found
  for _, row in ipairs(t.rows) do
    local match = true
    for i, key in ipairs(keys) do match = match and row[i] ~= nil and same(row[i], key) end
    if match then
      if found then error(('%s has several rows %s'):format(t.path, table.concat(keys, ', ')), 0) end
      found = row
    end
  end
  if not found then error(('%s has no row %s'):format(t.path, table.concat(keys, ', ')), 0) end
  return found
end

-- What an expression looked up last, to be shown as it stands where nothing is computed with it.
local seen
local function cell(text, where)
  seen.count, seen.text = seen.count + 1, text
  seen.where[#seen.where + 1] = where
  return tonumber(text) or text
end

-- `tiles plan` writes key and value a line, made by book.sh for the plans that the book names.
local function pairs_of(path)
  local text = sources.read(path)
  if not text then error('there is no ' .. path, 0) end
  local t = {}
  for _, line in ipairs(sources.lines(text)) do
    local key, value = line:match('^([^#\t][^\t]*)\t([^\t]*)')
    if key then t[key] = value end
  end
  return t
end

local function lookup(path, key)
  local value = pairs_of(path)[key]
  if not value then error(('%s has no %s'):format(path, key), 0) end
  return cell(value, ('%s: %s'):format(path:gsub('^build/book/', ''), key))
end

-- The constants of the sources: #define NAME value and enum { NAME, NAME = value }. Evaluated as integers.
local constants, several = nil, {} -- several: names that mean one thing here and another there
local function bare(text) -- without comments and strings
  return (text:gsub('/%*.-%*/', ' '):gsub('//[^\n]*', ''):gsub('"[^"\n]*"', '""'))
end
local function find_constants()
  constants = {}
  local function add(name, value)
    if constants[name] and constants[name] ~= value then several[name] = true end
    constants[name] = constants[name] or value
  end
  for _, f in ipairs(sources.files) do
    if f.name:find('%.[ch]u?h?$') then
      local text = bare(table.concat(f.lines, '\n'))
      for name, value in text:gmatch('#%s*define%s+([%a_][%w_]*)[ \t]+([^\n]+)') do add(name, value) end
      for body in text:gmatch('enum[%s%w_:]*(%b{})') do
        local last, past = '-1', 0
        for item in (body:sub(2, -2) .. ','):gmatch('%s*(.-)%s*,') do
          local name, value = item:match('^([%a_][%w_]*)%s*=%s*(.+)$')
          if name then last, past = value, 0 else name, past = item:match('^([%a_][%w_]*)$'), past + 1 end
          if name then add(name, past == 0 and last or ('(%s) + %d'):format(last, past)) end
        end
      end
      for name, value in text:gmatch('const[%s%w_]-%s([%u][%u%d_]+)%s*=%s*([^;{]+);') do add(name, value) end
    end
  end
end
local function constant(name, depth)
  if not constants then find_constants() end
  if not constants[name] then error('the sources have no constant ' .. name, 0) end
  if several[name] then error('the sources have several constants ' .. name, 0) end
  if depth > 20 then error(name .. ' is defined by itself', 0) end
  local lua = constants[name]:gsub('(%f[%w]%d[%x]*)[uUlL]+%f[%W]', '%1'):gsub('/', '//')
    :gsub('%f[%w_]([%a_][%w_]*)', function(word)
      if word:find('^x%x*$') then return nil end
      return ('(%s)'):format(tostring(constant(word, depth + 1)))
    end)
  local f = load('return ' .. lua, name, 't', {})
  local ok, value = pcall(f or error)
  if not ok or type(value) ~= 'number' then error(('the value of %s is not understood: %s'):format(name, constants[name]), 0) end
  return value
end

local env = { math = math, string = string, min = math.min, max = math.max, floor = math.floor, ceil = math.ceil, tonumber = tonumber }
function env.v(name, ...)
  local keys = { ... }
  local column = table.remove(keys)
  local t = tsv('measured/' .. name .. '.tsv')
  if #keys == 0 then error(('v("%s", ...) wants keys and a column'):format(name), 0) end
  if not t.head[column] then error(('%s has no column %s'):format(t.path, tostring(column)), 0) end
  local row = row_of(t, keys)
  for i, key in ipairs(keys) do keys[i] = text_of(key) end
  M.used[t.path] = t
  return cell(row[t.head[column]] or '', ('%s: %s: %s%s'):format(t.path, table.concat(keys, ', '), column, t.says.date and ', ' .. t.says.date or ''))
end
function env.given(key, quiet)
  local t = tsv('measured/given.tsv')
  local row = row_of(t, { key })
  if quiet ~= 'quiet' then seen.given[#seen.given + 1] = { key = key, citation = row[t.head.citation] or '' } end
  return cell(row[t.head.value], ('given: %s'):format(row[t.head.citation] or ''))
end
function env.target(name, key) return lookup('targets/' .. name .. '.tsv', key) end
function env.plan(shape, target, context, key) return lookup(('build/book/plans/%s,%s,%s.tsv'):format(shape, target, text_of(context)), key) end
function env.code(name) return cell(text_of(constant(name, 0)), name .. ' in the sources') end

local function thousands(x)
  local s = ('%.0f'):format(x)
  local sign, digits = s:match('^(-?)(%d+)$')
  return sign .. digits:reverse():gsub('(%d%d%d)', '%1,'):reverse():gsub('^,', '')
end

-- `expression|format`: the text to show, where it is from, and the citations it brings. Raises what is wrong.
function M.evaluate(code)
  local expression, format = code:match('^(.*)|%s*([%%,].*)$')
  if not expression then expression = code end
  seen = { count = 0, where = {}, given = {} }
  local f, bad = load('return ' .. expression, '=', 't', env)
  if not f then error('not an expression: ' .. bad:gsub('^[^:]*:%d+: ', ''), 0) end
  local ok, value = pcall(f)
  if not ok then error(type(value) == 'table' and value or tostring(value):gsub('^:%d+: ', ''), 0) end
  if value == nil or value == '' then error('this has no value: ' .. expression, 0) end
  local text
  if format == ',' or format == '%,' or format == '%,d' then
    if type(value) ~= 'number' then error('not a number: ' .. tostring(value), 0) end
    text = thousands(value)
  elseif format then
    if type(value) ~= 'number' and format:find('[dfgeix]') then error('not a number: ' .. tostring(value), 0) end
    if format:find('%%[-+ #0-9]*d') then value = math.floor(value + 0.5) end
    text = format:format(value)
  elseif type(value) == 'string' then
    text = value
  elseif seen.count == 1 and tonumber(seen.text) == value then
    text = seen.text
  else
    error('what is computed needs a format, such as |%.2f: ' .. expression, 0)
  end
  return text:gsub('^%-', '−'), seen.where, seen.given
end

-- Digits with a unit, typed by hand.
local units = { 'tokens/s', 'ms/token', 'GB/s', 'TB/s', 'MB/s', 'KB/s', 'GiB', 'MiB', 'KiB', 'TB', 'GB', 'MB', 'KB', 'kB', 'ms', 'µs', 'μs', 'us', 'ns',
  'percent', 'microseconds', 'milliseconds', 'nanoseconds', 'microsecond', 'millisecond', '%' }
function M.is_unit(word)
  local t = tsv('measured/given.tsv')
  for _, row in ipairs(t.rows) do
    local u = row[t.head.unit]
    if u and u ~= '' and (word == u or word == u:gsub('^us', 'µs')) then return true end
  end
  for _, u in ipairs(units) do
    if word == u then return true end
  end
  return word:find('^%u*FLOP') ~= nil
end

function M.typed(text)
  local from = 1
  while true do
    local a, b = text:find('%d[%d.,]*', from)
    if not a then return nil end
    from = b + 1
    b = b - #text:sub(a, b):match('[.,]*$')
    local before = text:sub(a - 1, a - 1)
    if not before:find('[%w_]') or before:byte() and before:byte() > 127 then
      local after = text:sub(b + 1)
      local near, x = after:match('^×'), after:match('^x%f[^%w_]')
      if near or x then return text:sub(a, b) .. (near or x) end
      local rest = after:gsub('^\194\160', ''):gsub('^\226\128\175', ''):gsub('^[ -]', '')
      for _, u in ipairs(units) do
        if rest:sub(1, #u) == u and not rest:sub(#u + 1, #u + 1):find('[%w_]') then return text:sub(a, b) .. ' ' .. u end
      end
    end
  end
end

-- Tables whose source has changed since they were measured. now: { gpu = HASH, ... }
function M.kind(path)
  local name = path:match('([^/]+)%.tsv$')
  return name:find('ladder') and 'ladder' or name:find('^cpu') and 'cpu' or
             (name:find('tape') or name:find('beside') or not name:find('^h200')) and 'gpu' or 'waves'
end

M.tsv = tsv
return M
