-- The weave. A chapter is Markdown in which empty fences name parts of the program and inline code that begins with `=`
-- names numbers; this filter puts both in. It reads files and writes none: book.sh runs it once a chapter, and once with
-- `check` for what concerns the book as a whole.
--
--   pandoc -M weave=08-gemv --lua-filter chapters/weave.lua </dev/null     a chapter, as the document
--   pandoc -M weave=check ...                                              every line shown once; stale tables
--   pandoc -M weave=search ...                                             the search's index
--
-- The chapter's text is read here and not by pandoc, so that every message can name a file and a line: pandoc's tree has no
-- places, but what it holds stands in the text in the same order. weave/sources.lua knows the program and the chapters' fences,
-- weave/numbers.lua tables and expressions, weave/html.lua how a listing and a figure look.
package.path = (PANDOC_SCRIPT_FILE:match('^(.*)%.lua$') or 'chapters/weave') .. '/?.lua;' .. package.path
local sources = require 'sources'
local numbers = require 'numbers'
local looks = require 'looks'

local stringify = pandoc.utils.stringify
local FROM = 'markdown-auto_identifiers-implicit_figures-citations'
local epub = FORMAT ~= 'html5' and FORMAT ~= 'html'

-- pandoc's attributes have no ids that begin with a digit and no words alone; chapters have #07-plan and noprose.
local function read_markdown(text)
  text = text:gsub('({%.?%w[^}\n]*) noprose', '%1 .noprose'):gsub('({[^}\n]-)#(%d)', '%1#digit.%2')
  local function back(x)
    x.identifier = x.identifier:gsub('^digit%.', '')
    return x
  end
  local function literal(x)
    x.text = x.text:gsub('#digit%.', '#')
    return x
  end
  local div = pandoc.Div(pandoc.read(text, FROM).blocks)
  div = pandoc.walk_block(div, { Header = back, Div = back, Span = back, Image = back, Link = back, CodeBlock = back })
  return pandoc.walk_block(div, { CodeBlock = literal, Code = literal }).content
end

-- Where we are: a text with the number of its first line, and how far each kind of thing has been found in it.
local function place(file, line, text)
  return { file = file, line = line, text = text, at = {} }
end
local function line_of(here, kind, needle)
  local from = here.at[kind] or 1
  local first = needle:match('^[^\n]*')
  local a, b = here.text:find(first, from, true)
  if not a then -- broken over two lines in the text, perhaps
    local pattern = first:gsub('[%^%$%(%)%%%.%[%]%*%+%-%?]', '%%%0'):gsub('%s+', '%%s+')
    a, b = here.text:find(pattern, from)
  end
  if not a then a, b = here.text:find(first:match('^%S*'), from, true) end
  if not a or first == '' then a, b = from, from end
  here.at[kind] = b
  local _, breaks = here.text:sub(1, a - 1):gsub('\n', '')
  return here.line + breaks
end
local function fault(here, kind, needle, message) sources.fault(here.file, line_of(here, kind, needle), message) end
local function lack(here, kind, needle, message) sources.lack(here.file, line_of(here, kind, needle), message) end

-- Inlines as text for the check of typed numbers: what may hold digits with a unit stands as it is, code and facts are a mark.
local function flat(inlines, out)
  out = out or {}
  for _, x in ipairs(inlines) do
    if x.t == 'Str' then out[#out + 1] = x.text
    elseif x.t == 'Space' or x.t == 'SoftBreak' or x.t == 'LineBreak' then out[#out + 1] = ' '
    elseif x.t == 'Math' then out[#out + 1] = x.text:gsub('\\[,;: ]', ' '):gsub('\\text%s*(%b{})', function(s) return s:sub(2, -2) end):gsub('\\%%', '%%'):gsub('~', ' ')
    elseif x.t == 'Span' and x.classes:includes('fact') or x.t == 'Code' or x.t == 'Note' then out[#out + 1] = '\1'
    elseif x.t == 'Image' then flat(x.caption, out)
    elseif x.t == 'Quoted' or x.content then flat(x.content, out) end
  end
  return out
end
local function no_typed_numbers(here, inlines)
  local typed = numbers.typed(table.concat(flat(inlines)))
  if typed then
    fault(here, 'typed', typed:match('^[%d.,]+'), ('a typed number: %s (a measurement is `=v(...)`; a definition is [%s]{.fact})'):format(typed, typed))
  end
end

local function number(here, state, code)
  local ok, text, where, cited = pcall(numbers.evaluate, code.text:sub(2))
  if not ok then
    local tell = type(text) == 'table' and lack or fault
    tell(here, 'code', '`' .. code.text, type(text) == 'table' and text.lack or tostring(text))
    return pandoc.Span({ pandoc.Str '?' })
  end
  local list = { pandoc.Span({ pandoc.Str(text) }, pandoc.Attr('', { 'number' }, { title = table.concat(where, '; ') })) }
  for _, c in ipairs(cited) do
    if c.citation ~= '' and not state.cited[c.citation] then
      state.cited[c.citation] = true
      list[#list + 1] = pandoc.Note { pandoc.Para(pandoc.read(c.citation, 'markdown-smart').blocks[1].content) }
    end
  end
  return list
end

-- A number's note goes behind its unit, or to the end of the clause: 67 and a raised 1 would be a power.
local function behind_the_unit(inlines)
  local out, waiting = pandoc.List(), nil
  for i, x in ipairs(inlines) do
    local before = inlines[i - 1]
    if x.t == 'Note' and before and before.t == 'Span' and before.classes:includes('number') and inlines[i + 1] then
      if waiting then out:insert(waiting) end
      waiting = x
    else
      out:insert(x)
      if waiting and x.t == 'Str' and (x.text:find('[,.;:)]$') or numbers.is_unit(x.text)) then
        out:insert(waiting)
        waiting = nil
      end
    end
  end
  if waiting then out:insert(waiting) end
  return out
end

-- What does not break over two lines: a number and its unit, the parts of a short formula, code of a few words.
local NBSP = '\194\160'
local operators = { ['+'] = 1, ['−'] = 1, ['-'] = 1, ['×'] = 1, ['·'] = 1, ['='] = 1, ['≤'] = 1, ['≥'] = 1, ['<'] = 1, ['>'] = 1, ['/'] = 1 }
local function together(inlines)
  for i, x in ipairs(inlines) do
    local a, b = inlines[i - 1], inlines[i + 1]
    if (x.t == 'Space' or x.t == 'SoftBreak') and a and b and b.t == 'Str' then
      local was, comes = a.t == 'Str' and a.text or '', b.text:gsub('[,.;:)]+$', '')
      local unit = a.t == 'Span' and a.classes:includes('number') and numbers.is_unit(comes)
      local formula = was ~= '' and (operators[comes] or operators[was]) and utf8.len(was) < 6 and utf8.len(comes) < 6
      local product = was:find('^%d+$') and (comes:find('^%l$') and comes ~= 'a' or comes:find('^%u%u+$'))
      if unit or formula or product then inlines[i] = pandoc.Str(NBSP) end
    end
  end
  return inlines
end
local function short_code(c)
  if #c.classes == 0 and utf8.len(c.text) <= 24 then
    c.classes:insert 'short'
    return c
  end
end

-- A link's target in the built book. Nothing else ends in a page that does not exist.
local function url(chapter, id, own)
  if epub then return '#' .. (id or chapter.id or chapter.name) end
  if chapter == own then return '#' .. (id or chapter.id or chapter.name) end
  return chapter.name .. '.html' .. (id and '#' .. id or '')
end
local function find_anchor(id, number_of_chapter)
  local tries = { id, 'region-' .. id }
  if number_of_chapter then table.insert(tries, 2, number_of_chapter .. '-' .. id) end
  for _, try in ipairs(tries) do
    if sources.anchors[try] then return sources.anchors[try], try end
  end
  -- A line of a listing.
  local name, n = id:match('^(.+)-(%d+)$')
  local f = sources.files[name or ''] or sources.files[(name or ''):gsub('^chapters%-', 'chapters/')]
  local owner = f and f.owner[tonumber(n)]
  if owner then return { chapter = owner.chapter, path = f.name, line = tonumber(n), what = { title = id } }, not epub and id or nil end
end
local function link(here, state, l)
  local t = l.target
  if t:find('^%a[%w+.-]*:') then return nil end
  if l.classes:includes('made') then return nil end
  local page, id = t:match('^([^#]*)#?(.*)$')
  local name = page:gsub('^%.?%.?/', ''):gsub('^chapters/', '')
  local file = sources.files[page:gsub('^%.?%.?/', '')] or sources.files[name] or sources.files['chapters/' .. name]
  local function text(default) if #l.content == 0 then l.content = { pandoc.Str(default) } end end
  if file then
    if id:find('^L%d') and not file.lines[tonumber(id:match('%d+'))] then fault(here, 'link', '(' .. t, ('%s has no line %s'):format(file.name, id)) end
    text(file.name)
    if epub then return pandoc.Span(l.content) end
    l.target = 'src/' .. file.name .. '.html' .. (id ~= '' and '#' .. id or '')
    l.classes:insert('src')
    return l
  end
  local c
  if page ~= '' then
    c = sources.chapters[name:gsub('%.md$', '')]
    if not c or not name:find('%.md$') then
      fault(here, 'link', '(' .. t, ('there is no page %s'):format(page))
      return nil
    end
    if not c.exists then
      lack(here, 'link', '(' .. t, ('%s does not exist yet'):format(page))
      return pandoc.Span(l.content)
    end
  end
  if id == '' then
    text(c and c.title or '')
    l.target = url(c or state.chapter, nil, state.chapter)
    return l
  end
  local number_of_chapter = (c or state.chapter).name:match('^%w+')
  local anchor, real = find_anchor(id, number_of_chapter)
  if not anchor or c and anchor.chapter ~= c then
    local elsewhere = anchor and (': it is in %s'):format(anchor.chapter.path) or ''
    local draft = not anchor and id:find('^term%-') or nil
    for _, other in ipairs(sources.chapters) do
      if not other.exists and not anchor and id:find('^' .. other.name:match('^%w+') .. '%-') then draft = true end
    end
    local tell = draft and lack or fault
    tell(here, 'link', '(' .. t, ('there is no anchor %s%s'):format(t, elsewhere))
    return pandoc.Span(l.content)
  end
  local what = anchor.what
  if what.kind == 'region' then text(what.title)
  else text(what.title and stringify(pandoc.read(what.title, 'markdown').blocks) or id) end
  l.target = url(anchor.chapter, real, state.chapter)
  return l
end

local function term(here, state, span)
  local words = stringify(span.content)
  local id = 'term-' .. (span.attributes.of and sources.slug(span.attributes.of) or sources.slug(words))
  local t = sources.terms[id] or sources.terms[id:gsub('s$', '')]
  if not sources.terms[id] then id = id:gsub('s$', '') end
  if not t then
    local glossary = sources.chapters['A8-glossary']
    local tell = glossary and glossary.exists and fault or lack
    tell(here, 'term', '[' .. words .. ']', ('the glossary has no term "%s"'):format(words))
    return span.content
  end
  local title = stringify(pandoc.read(t.text, 'markdown').blocks)
  return pandoc.Link(span.content, url(t.chapter, id, state.chapter), title, pandoc.Attr('', { 'term', 'made' }))
end

-- Everything that happens to prose, a chapter's or a source file's.
local function prose(here, state, blocks)
  local function typed(b) no_typed_numbers(here, b.content) end
  local div = pandoc.Div(blocks)
  div = pandoc.walk_block(div, { Para = typed, Plain = typed, Header = typed })
  div = pandoc.walk_block(div, { Code = function(c) if c.text:find('^=') and #c.classes == 0 then return number(here, state, c) end end })
  div = pandoc.walk_block(div, { Inlines = function(list) return together(behind_the_unit(list)) end, Code = short_code })
  div = pandoc.walk_block(div, {
    Span = function(s)
      if s.classes:includes('term') then return term(here, state, s) end
    end,
  })
  div = pandoc.walk_block(div, { Link = function(l) return link(here, state, l) end })
  div = pandoc.walk_block(div, {
    Para = function(p)
      if #p.content == 1 and p.content[1].t == 'Image' then return looks.figure(here, state, p.content[1], line_of(here, 'image', '](' .. p.content[1].src)) end
    end,
  })
  return div.content
end

-- A fence: what it shows, as blocks. state.level is that of the section around it.
local function include(state, fence)
  local out, shift = {}, nil
  if fence.how == 'solution' then return looks.solution(state, fence) end
  local items = sources.items(fence)
  for _, item in ipairs(items) do
    if item.prose then
      for level in ('\n' .. item.prose.text):gmatch('\n%s*(#+)%s') do
        shift = math.min(shift or 9, #level)
      end
    end
  end
  for i, item in ipairs(items) do
    if item.prose then
      local b = item.prose
      local here = place(b.file.name, b.first, b.text)
      local blocks = read_markdown(b.text:gsub('^   ', ''))
      for _, x in ipairs(blocks) do
        if x.t == 'Header' then
          if x.identifier == '' then x.identifier = b.file.name .. '-' .. sources.slug(stringify(x.content)) end
          x.level = math.min(6, state.level + x.level - shift + 1)
        end
      end
      for _, x in ipairs(prose(here, state, blocks)) do out[#out + 1] = x end
    else
      for _, x in ipairs(looks.listing(state, fence, item, items[i - 1])) do out[#out + 1] = x end
    end
  end
  return out
end

-- A chapter. Its headings without an id get NN-words-of-the-heading.
local function weave(name)
  local c = sources.chapters[name] or error('no chapter ' .. name)
  local prefix = name:match('^%w+')
  local here = place(c.path, 1, c.text)
  local state = { chapter = c, level = 1, cited = {}, url = url, epub = epub, fault = sources.fault, lack = sources.lack }
  local blocks = prose(here, state, read_markdown(c.text))
  local out, next_fence, code = pandoc.List(), 1, 0
  local function each(list)
    local kept = pandoc.List()
    for _, b in ipairs(list) do
      local how = b.t == 'CodeBlock' and (b.attributes.region or b.attributes.recall or b.attributes.file or b.attributes.rest or b.attributes.solution)
      if b.t == 'Header' then
        if b.identifier == '' then b.identifier = b.level == 1 and name or prefix .. '-' .. sources.slug(stringify(b.content)) end
        state.level = b.level
        kept:insert(b)
      elseif how then
        local fence = c.fences[next_fence]
        next_fence = next_fence + 1
        if not fence or fence.what ~= how then sources.fault(c.path, fence and fence.line or 1, 'this fence is not understood: ' .. how)
        else
          if b.text:find('%S') then sources.fault(c.path, fence.line, 'this fence should be empty') end
          kept:extend(include(state, fence))
        end
      elseif b.t == 'CodeBlock' then
        code = code + 1
        if b.identifier == '' then b.identifier = ('code-%s-%d'):format(prefix, code) end
        kept:insert(b)
      elseif b.t == 'Div' or b.t == 'BlockQuote' then
        b.content = each(b.content)
        kept:insert(b)
      else
        kept:insert(b)
      end
    end
    return kept
  end
  out = each(blocks)
  if next_fence <= #c.fences then
    sources.fault(c.path, c.fences[next_fence].line, 'this fence is not understood: it stands in a list, or its attributes have an error')
  end
  -- Glossary entries can be linked to.
  if name:find('glossary') then
    out = pandoc.walk_block(pandoc.Div(out), {
      DefinitionList = function(d)
        for _, item in ipairs(d.content) do
          item[1] = { pandoc.Span(item[1], pandoc.Attr('term-' .. sources.slug(stringify(item[1])))) }
        end
        return d
      end,
    }).content
  end
  local sections = pandoc.List()
  for _, b in ipairs(out) do
    if b.t == 'Header' and b.level == 2 then sections:insert { id = b.identifier, title = stringify(b.content) } end
  end
  return pandoc.Pandoc(looks.page(state, out), looks.meta(state, sections))
end

-- The book as a whole: every line once, and what is stale. The list of stale tables is the document.
local function check(hashes)
  sources.unshown()
  local stale = {}
  for line in hashes:gmatch('[^\n]+') do
    local kind, now, tables = line:match('^(%S+) (%S+) (.*)$')
    for path in (tables or ''):gmatch('%S+') do
      local was = (numbers.tsv(path).says.source or ''):match('^%x+')
      if was and was ~= now then stale[#stale + 1] = ('%s: measured from source %s, which is now %s (%s)'):format(path, was, now, kind) end
    end
  end
  table.sort(stale)
  return pandoc.Pandoc { pandoc.RawBlock('plain', table.concat(stale, '\n')) }
end

function Pandoc(doc)
  local what = stringify(doc.meta.weave)
  sources.load(stringify(doc.meta.files or 'build/book/files'))
  for _, f in ipairs(sources.faults) do f.early = true end -- found in the files by themselves: told once, by `check`
  local result
  local file = what:match('^source:(.*)')
  if file then
    result = looks.source(sources.files[file])
  elseif what == 'whole' then
    result = looks.whole()
  elseif what == 'check' then
    result = check(sources.read(stringify(doc.meta.hashes or 'build/book/hashes')) or '')
  else
    result = weave(what)
  end
  if what ~= 'check' and what ~= 'whole' then
    local own_path = file or sources.chapters[what].path
    for i = #sources.faults, 1, -1 do -- a page reports its own
      local f = sources.faults[i].text
      if f:find(own_path, 1, true) ~= 1 and (file or f:find('^chapters/%w+%-[%w-]+%.md:') or sources.faults[i].early) then table.remove(sources.faults, i) end
    end
  end
  if what == 'whole' then sources.faults = {} end
  local draft, bad = doc.meta.draft ~= nil, false
  local told = {}
  for _, f in ipairs(sources.faults) do
    local only = draft and f.kind == 'lack'
    if not told[f.text] then io.stderr:write(f.text, only and ' (draft)' or '', '\n') end
    told[f.text] = true
    bad = bad or not only
  end
  if bad then os.exit(1) end
  return result
end
